/* A network as a list of operations on buffers, as Program in __init__.py writes it.  All numbers are int64.

   A buffer holds the activations of a block of examples, [channel][row][column][lane], a lane per example, with dead
   rows and columns around it that stay zero, which is what a convolution with padding reads there.  With one lane a
   vector is of neighbouring results of one example instead.                                                          */
#ifndef BAYESPRUNE_ENGINE_H
#define BAYESPRUNE_ENGINE_H

#include <stdint.h>

enum { ENGINE_VERSION = 3 }; /* another one for other structures: an engine that was built before must not read them */
enum { PANELS, MAXIMUM, MEAN, SUM, COPY }; /* kinds of an operation */
enum { MOST_ROWS = 8 };                    /* of a panel */

typedef struct {
    int64_t channels, rows, columns;  /* without the border */
    int64_t top, left, bottom, right; /* the border */
} Buffer;

typedef struct {
    int64_t kind;
    int64_t from, from2, to;         /* buffers; from2 of SUM, or -1 */
    int64_t rows, columns;           /* of the result, before pooling where `pool` is above 1 */
    int64_t step_down, step_right;   /* stride */
    int64_t first_row, first_column; /* of the input that the first result reads, with the border counted */
    int64_t window_down, window_right;
    int64_t relu;                    /* 1: max(0, result) */
    int64_t pool;                    /* PANELS only: then a maximum over pool x pool */
    int64_t parts;                   /* PANELS only: 1: panels come in parts, one part of all after the other */
    int64_t panel, panels;           /* the first and how many */
} Operation;

typedef struct {
    int64_t height;           /* rows of this panel: 1, 2, 4 or 8 */
    int64_t tap, taps;        /* the first and how many: taps[tap ...] */
    int64_t weight;           /* weights[weight + t * height + r] of tap t and row r */
    int64_t begins, ends;     /* 1: no part of it comes before, after */
    int64_t rows[MOST_ROWS];  /* output channels; a row twice is written twice with the same value */
} Panel;

typedef struct {
    int64_t operations, buffers, lanes, inputs, outputs; /* inputs, outputs: values per example */
    const Operation *operation;
    const Buffer *buffer;
    const Panel *panels;
    const int64_t *taps;   /* offsets in floats from where a result begins to read, by tap */
    const int64_t *places; /* offsets in floats of all values in the input's buffer, then in the output's */
    const float *weights;
    const float *biases;   /* by panel and row: biases[MOST_ROWS * panel + r] */
    int64_t input, output; /* buffers */
} Program;

#endif
