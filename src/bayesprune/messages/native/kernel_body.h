/* Included by kernel.c with REAL and NAME(x) defined.
 *
 * A grid is a table of rows: sizes[0..outer-1] count the rows, `width` sites lie side by side in a row.  The sites
 * of a row are neighbours of each other (`chained`, one more coupled axis) or independent (a block of a batch).
 * Axis a owns two message arrays: 2a holds what each site received from its lower neighbour, 2a+1 from its higher
 * one.  Rows of message arrays are `pitch` >= width + 2 apart, so that what a chained row sends over its two ends
 * falls into slots that nobody reads.  Sites without a neighbour keep the message 1.
 */

typedef struct {
    int outer, chained, axes;    /* axes = outer + chained */
    long sizes[MAX_AXES];        /* rows along each outer axis */
    long strides[MAX_AXES];      /* distance, in rows, to the next row along the axis */
    long rows, width, pitch;
    REAL table[MAX_AXES][4];     /* T00 T01 T10 T11 per axis; the chained axis last */
} NAME(Grid);

static NAME(Grid) NAME(describe)(int axes, const long *sizes, const REAL *tables, long batch_block) {
    NAME(Grid) g;
    g.axes = axes;
    g.chained = batch_block == 0;
    g.outer = axes - g.chained;
    g.width = g.chained ? sizes[axes - 1] : batch_block;
    g.pitch = (g.width + 2 + 15) / 16 * 16;
    g.rows = 1;
    for (int a = g.outer - 1; a >= 0; a--) {
        g.sizes[a] = sizes[a];
        g.strides[a] = g.rows;
        g.rows *= sizes[a];
    }
    memcpy(g.table, tables, sizeof(REAL) * 4 * (size_t)axes);
    return g;
}

/* What one row sends: compiled for each number of axes and with or without damping, so that the loops unroll. */
static inline __attribute__((always_inline)) void NAME(send)(
    const int axes, const int damped, long width, REAL damping, const REAL (*table)[4], const REAL *restrict evidence,
    const REAL *const *in, REAL *const *out, const REAL *const *before) {
#pragma GCC ivdep
    for (long j = 0; j < width; j++) {
        REAL product = evidence[j];
#pragma GCC unroll 10
        for (int k = 0; k < 2 * axes; k++) product *= in[k][j];
#pragma GCC unroll 5
        for (int a = 0; a < axes; a++) {
            const REAL t00 = table[a][0], t01 = table[a][1], t10 = table[a][2], t11 = table[a][3];
            const REAL lower = in[2 * a][j], higher = in[2 * a + 1][j];
            REAL forward = (t01 * higher + t11 * product) / (t00 * higher + t10 * product);
            REAL backward = (t10 * lower + t11 * product) / (t00 * lower + t01 * product);
            if (damped) {
                forward += damping * (before[2 * a][j] - forward);
                backward += damping * (before[2 * a + 1][j] - backward);
            }
            out[2 * a][j] = forward;
            out[2 * a + 1][j] = backward;
        }
    }
}

/* One flooding iteration over the rows [first, last): reads `old`, writes the messages they send into `new`. */
WIDEST static void NAME(sweep)(const NAME(Grid) *g, const REAL *evidence, const REAL *old, REAL *new, REAL damping,
                        long first, long last, REAL *nowhere) {
    const long array = g->rows * g->pitch;
    const REAL *in[2 * MAX_AXES], *before[2 * MAX_AXES];
    REAL *out[2 * MAX_AXES];
    for (long row = first; row < last; row++) {
        const long here = row * g->pitch;
        for (int a = 0; a < g->axes; a++) {
            const REAL *lower = old + 2 * a * array, *higher = lower + array;
            REAL *new_lower = new + 2 * a * array, *new_higher = new_lower + array;
            in[2 * a] = lower + here;
            in[2 * a + 1] = higher + here;
            const int chained = a == g->outer;
            const long step = chained ? 1 : g->strides[a] * g->pitch;
            const long place = chained ? 0 : row / g->strides[a] % g->sizes[a];
            const int has_next = chained || place + 1 < g->sizes[a], has_previous = chained || place > 0;
            out[2 * a] = has_next ? new_lower + here + step : nowhere;
            before[2 * a] = has_next ? lower + here + step : nowhere;
            out[2 * a + 1] = has_previous ? new_higher + here - step : nowhere + g->pitch;
            before[2 * a + 1] = has_previous ? higher + here - step : nowhere + g->pitch;
        }
        const REAL *e = evidence + row * g->width;
#define CASE(n) case n: \
        if (damping > 0) NAME(send)(n, 1, g->width, damping, g->table, e, in, out, before); \
        else NAME(send)(n, 0, g->width, damping, g->table, e, in, out, before); \
        break;
        switch (g->axes) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) }
#undef CASE
    }
}

/* Largest ratio new/old (either way round) over rows [first, last) of all message arrays, counted through. */
WIDEST static REAL NAME(ratio)(const NAME(Grid) *g, const REAL *old, const REAL *new, long first, long last) {
    REAL largest = 1, smallest = 1;
    for (long row = first; row < last; row++) {
        const REAL *o = old + row * g->pitch, *n = new + row * g->pitch;
        for (long j = 0; j < g->width; j++) {
            const REAL q = n[j] / o[j];
            largest = q > largest ? q : largest;
            smallest = q < smallest ? q : smallest;
        }
    }
    return 1 / smallest > largest ? 1 / smallest : largest;
}

/* Product of all messages into each site of the rows [first, last). */
WIDEST static void NAME(collect)(const NAME(Grid) *g, const REAL *messages, REAL *result, long result_pitch, long first, long last) {
    const long array = g->rows * g->pitch;
    for (long row = first; row < last; row++) {
        REAL *restrict to = result + row * result_pitch;
        const REAL *from = messages + row * g->pitch;
        for (long j = 0; j < g->width; j++) to[j] = from[j];
        for (int k = 1; k < 2 * g->axes; k++)
            for (long j = 0; j < g->width; j++) to[j] *= from[k * array + j];
    }
}

static size_t NAME(scratch)(const NAME(Grid) *g) { /* two sets of messages with a margin in front, two rows of waste */
    return (size_t)(2 * (2 * g->axes * g->rows * g->pitch + 16) + 2 * g->pitch);
}

static void NAME(fill)(REAL *to, size_t count) { for (size_t i = 0; i < count; i++) to[i] = 1; }

/* One grid of any size, its rows shared among threads.  `messages` (2*axes, sites) may be null.  Returns 0, or 1 if
 * there is no memory. */
int NAME(one_grid)(const REAL *evidence, REAL *result, REAL *messages, int axes, const long *sizes, const REAL *tables,
                   int iterations, int check_every, double tolerance, double damping, int threads, double *change,
                   int *iterations_done) {
    const NAME(Grid) g = NAME(describe)(axes, sizes, tables, 0);
    const long half = 2 * axes * g.rows * g.pitch, message_rows = 2 * axes * g.rows;
    const size_t count = NAME(scratch)(&g) + 2 * (size_t)(g.pitch * (threads - 1)); /* waste rows of their own */
    REAL *memory = malloc(count * sizeof(REAL));
    if (!memory) return 1;
    NAME(fill)(memory, count);
    REAL *old = memory + 16, *new = old + half + 16, *nowhere = new + half;
    *change = INFINITY;
    int done = 0;
    while (done < iterations) {
        done++;
        const int check = done == iterations || (tolerance > 0 && done % check_every == 0);
        REAL largest = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++)
            NAME(sweep)(&g, evidence, old, new, (REAL)damping, g.rows * t / threads, g.rows * (t + 1) / threads,
                        nowhere + 2 * g.pitch * t);
        if (check) {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : largest)
            for (int t = 0; t < threads; t++) {
                const REAL q = NAME(ratio)(&g, old, new, message_rows * t / threads, message_rows * (t + 1) / threads);
                largest = q > largest ? q : largest;
            }
            *change = log((double)largest);
        }
        REAL *swap = old; old = new; new = swap;
        if (check && *change <= tolerance) break;
    }
    *iterations_done = done;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++)
        NAME(collect)(&g, old, result, g.width, g.rows * t / threads, g.rows * (t + 1) / threads);
    if (messages)
        for (long row = 0; row < message_rows; row++)
            memcpy(messages + row * g.width, old + row * g.pitch, sizeof(REAL) * (size_t)g.width);
    free(memory);
    return 0;
}

/* Many independent grids, each thread working on its own until their messages have settled.  `messages` may be null, else
 * (2*axes, sites, batch) or (batch, 2*axes, sites).
 * block > 0: small grids laid out as (sites, batch), `block` of them side by side in the vector unit and the cache.
 * block = 0: grids laid out one after the other, (batch, sites). */
int NAME(many_grids)(const REAL *evidence, REAL *result, REAL *messages, long batch, long block, int axes, const long *sizes,
                     const REAL *tables, int iterations, int check_every, double tolerance, double damping, int threads,
                     double *change, int *iterations_done) {
    const long together = block ? block : 1, pieces = (batch + together - 1) / together;
    const NAME(Grid) largest_piece = NAME(describe)(axes, sizes, tables, block);
    const long sites = largest_piece.rows * largest_piece.width / together;
    double largest_change = 0;
    int most_iterations = 0, no_memory = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest_change, most_iterations, no_memory)
    {
        const size_t message_count = NAME(scratch)(&largest_piece);
        REAL *memory = malloc((message_count + (size_t)(sites * block)) * sizeof(REAL));
        no_memory = memory == NULL;
#pragma omp for schedule(dynamic, 1)
        for (long piece = 0; piece < pieces; piece++) {
            if (no_memory) continue;
            const long start = piece * together, count = batch - start < together ? batch - start : together;
            const NAME(Grid) g = NAME(describe)(axes, sizes, tables, block ? count : 0);
            const long half = 2 * axes * g.rows * g.pitch;
            REAL *old = memory + 16, *new = old + half + 16, *nowhere = new + half, *copy = memory + message_count;
            NAME(fill)(memory, NAME(scratch)(&g));
            if (block)
                for (long row = 0; row < g.rows; row++)
                    memcpy(copy + row * count, evidence + row * batch + start, sizeof(REAL) * (size_t)count);
            const REAL *e = block ? copy : evidence + start * sites;
            double piece_change = INFINITY;
            int done = 0;
            while (done < iterations) {
                done++;
                NAME(sweep)(&g, e, old, new, (REAL)damping, 0, g.rows, nowhere);
                const int check = done == iterations || (tolerance > 0 && done % check_every == 0);
                if (check) piece_change = log((double)NAME(ratio)(&g, old, new, 0, 2 * axes * g.rows));
                REAL *swap = old; old = new; new = swap;
                if (check && piece_change <= tolerance) break;
            }
            if (block) NAME(collect)(&g, old, result + start, batch, 0, g.rows);
            else NAME(collect)(&g, old, result + start * sites, g.width, 0, g.rows);
            for (long row = 0; messages && row < 2 * axes * g.rows; row++) {
                REAL *to = block ? messages + row * batch + start : messages + (start * 2 * axes * g.rows + row) * g.width;
                memcpy(to, old + row * g.pitch, sizeof(REAL) * (size_t)g.width);
            }
            if (piece_change > largest_change) largest_change = piece_change;
            if (done > most_iterations) most_iterations = done;
        }
        free(memory);
    }
    *change = largest_change;
    *iterations_done = most_iterations;
    return no_memory;
}

/* Exact forward-backward on `chains` chains laid out as (length, chains): what each site hears from both sides. */
WIDEST static void NAME(chain_block)(const REAL *evidence, REAL *result, long length, long chains, long width, const REAL *t, REAL first,
                              REAL *restrict heard) {
    for (long j = 0; j < width; j++) result[j] = first;
    for (long i = 0; i + 1 < length; i++) {
        const REAL *e = evidence + i * chains, *here = result + i * chains;
        REAL *restrict next = result + (i + 1) * chains;
        for (long j = 0; j < width; j++) {
            const REAL r = e[j] * here[j];
            next[j] = (t[1] + t[3] * r) / (t[0] + t[2] * r);
        }
    }
    for (long j = 0; j < width; j++) heard[j] = 1;
    for (long i = length - 2; i >= 0; i--) {
        const REAL *e = evidence + (i + 1) * chains;
        REAL *restrict here = result + i * chains;
        for (long j = 0; j < width; j++) {
            const REAL r = e[j] * heard[j];
            heard[j] = (t[2] + t[3] * r) / (t[0] + t[1] * r);
            here[j] *= heard[j];
        }
    }
}

int NAME(chains)(const REAL *evidence, REAL *result, long length, long chains, const REAL *table, double first, int threads) {
    enum { WIDTH = 256 };
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long start = 0; start < chains; start += WIDTH) {
        REAL heard[WIDTH];
        const long width = chains - start < WIDTH ? chains - start : WIDTH;
        NAME(chain_block)(evidence + start, result + start, length, chains, width, table, (REAL)first, heard);
    }
    return 0;
}
