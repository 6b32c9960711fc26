"""How robust a network is: attacks, noise, calibration, and adversarial fine-tuning (paper Fig. 12).

bounds = Bounds.of(data)
hostile = fgsm(network, Classification(), x, y, 0.05, bounds)
measure(network, data.test, bounds, MeasureSettings())
harden(network, data.train, bounds, HardenSettings(epochs=10)).network
"""

from bayesprune.robustness.attacks import Bounds, fgsm, pgd
from bayesprune.robustness.calibration import expected_calibration_error, reliability
from bayesprune.robustness.hardening import Hardened, HardenSettings, harden, live_weights
from bayesprune.robustness.measuring import MeasureSettings, measure, with_noise
from bayesprune.robustness.records import Plan, RecordFiles, Subject
from bayesprune.robustness.studying import study, work_of

__all__ = [
    "Bounds",
    "HardenSettings",
    "Hardened",
    "MeasureSettings",
    "Plan",
    "RecordFiles",
    "Subject",
    "expected_calibration_error",
    "fgsm",
    "harden",
    "live_weights",
    "measure",
    "pgd",
    "reliability",
    "study",
    "with_noise",
    "work_of",
]
