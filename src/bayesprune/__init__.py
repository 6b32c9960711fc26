"""Structured Bayesian compression of neural networks with Turbo-VBI."""
