/* Sum-product in odds for binary grids and chains: paper (36) and (37), plain C, no torch headers.
 *
 * The code is in kernel_body.h, compiled twice: for float (suffix _f32) and for double (suffix _f64).
 *
 * A message is the odds m = m(1)/m(0).  With r the odds of a cavity and T[from][to] the table of the edge,
 *   forward   m = (T01 + T11 r) / (T00 + T10 r)        (from the lower to the higher index)
 *   backward  m = (T10 + T11 r) / (T00 + T01 r)
 * and r = P / m_back, where P is the product of the evidence and all messages into the site and m_back the
 * message that came along the same edge, so that one division per message is enough:
 *   forward   m = (T01 m_back + T11 P) / (T00 m_back + T10 P)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#define MAX_AXES 5

/* One binary for every x86-64 machine: the loader picks the widest vectors it has. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDEST
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#define REAL float
#define NAME(x) JOIN(x, _f32)
#include "kernel_body.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) JOIN(x, _f64)
#include "kernel_body.h"
