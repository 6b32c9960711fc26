/* Runs a compressed network on blocks of examples, a vector lane per example: a weight that is zero costs nothing, whatever
   its neighbours are, and everything between input and output stays in the cache.  A single example has neighbouring
   results in the lanes of a vector: a weight is one factor for all of them as well.                                  */
#include "engine.h"

#include <stddef.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { EVEN = 8 };  /* vectors that follow each other */
enum { STEPS = 4 }; /* sums that do not wait for each other */

/* Without a branch: of real inputs a processor cannot guess which way it goes. */
static inline float chosen(int which, float yes, float no) {
    union {
        float value;
        int32_t bits;
    } a = {yes}, b = {no};
    a.bits = (-which & a.bits) | (~-which & b.bits);
    return a.value;
}

/* As torch has them: what is not a number stays so. */
static inline float larger(float a, float b) { return chosen((a < b) | (b != b), b, a); }
static inline float positive(float a) { return chosen(a < 0, 0, a); }

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86 1
#pragma GCC push_options
#pragma GCC target("avx512f,fma")
#define NAME(x) JOIN(x, _avx512)
#define WIDTH 16
#define VECTORS 32
#include "kernels.h"
#undef NAME
#undef WIDTH
#undef VECTORS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) JOIN(x, _avx2)
#define WIDTH 8
#define VECTORS 16
#include "kernels.h"
#undef NAME
#undef WIDTH
#undef VECTORS
#pragma GCC pop_options
#endif
#define NAME(x) JOIN(x, _portable)
#define WIDTH 4
#define VECTORS 16
#include "kernels.h"
#undef NAME
#undef WIDTH
#undef VECTORS

typedef struct {
    int width;
    void (*panel)(int64_t, int64_t, const float *const *, const int64_t *, const int64_t *, int64_t, const float *,
                  const float *, float *const *, int, int, int);
    void (*pool)(const Operation *, const float *, int64_t, float *, int64_t, int64_t, int);
    void (*sum)(const float *, const float *, float *, int64_t, int);
    void (*to_lanes)(const float *, int64_t, int64_t, float *, const int64_t *);
    void (*from_lanes)(const float *, const int64_t *, int64_t, int64_t, float *);
    void (*settle)(const Operation *, const float *, int64_t, int64_t, int64_t, float *, int64_t);
    void (*dots)(int64_t, const float *, const int64_t *, int64_t, const float *, float *);
} Kernels;

enum { BEST, AVX512, AVX2, PORTABLE };
enum { ENOUGH_VECTORS = 16 };

int engine_version(void) { return ENGINE_VERSION; }

/* The instruction set that `wanted` asks for, or the best of this processor; -1 where it has not what is wanted. */
int instruction_set(int wanted) {
#ifdef HAS_X86
    __builtin_cpu_init();
    const int has512 = __builtin_cpu_supports("avx512f"), has2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    const int has512 = 0, has2 = 0;
#endif
    if (wanted == BEST) return has512 ? AVX512 : has2 ? AVX2 : PORTABLE;
    if ((wanted == AVX512 && !has512) || (wanted == AVX2 && !has2)) return -1;
    return wanted;
}

#define ALL_OF(set)                                                                                                    \
    panel_##set, pool_##set, sum_##set, to_lanes_##set, from_lanes_##set, settle_##set, dots_##set

static Kernels kernels(int set) {
#ifdef HAS_X86
    if (set == AVX512) return (Kernels){16, ALL_OF(avx512)};
    if (set == AVX2) return (Kernels){8, ALL_OF(avx2)};
#endif
    (void)set;
    return (Kernels){4, ALL_OF(portable)};
}

static int64_t wide(const Buffer *b) { return b->left + b->columns + b->right; }
static int64_t plane(const Buffer *b) { return (b->top + b->rows + b->bottom) * wide(b); }

/* What a thread needs: the buffers, some rows of channels before their pooling, and the addresses of a panel. */
typedef struct {
    float **buffer, *channel;
    const float **from;
    int64_t *to;
} Space;

static int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

/* Rows of results that are computed together: enough to fill the registers, few enough for their input to stay in the
   cache while all panels read it.                                                                                    */
static int64_t rows_together(const Operation *o, int64_t per_site) {
    int64_t together = o->pool;
    while (together < o->rows && together * o->columns * per_site < ENOUGH_VECTORS) together += o->pool;
    return together;
}

/* One example: vectors of so many rows of results, which lie as their input does. */
static int64_t vectors_alone(const Operation *o, const Buffer *in, int64_t rows, int width) {
    return ((rows - 1) * o->step_down * wide(in) + (o->columns - 1) * o->step_right + width) / width;
}

static int64_t rows_alone(const Operation *o, const Buffer *in, int width) {
    int64_t together = o->pool;
    while (together < o->rows && vectors_alone(o, in, together, width) < ENOUGH_VECTORS) together += o->pool;
    return together;
}

static int64_t largest_channel(const Program *p, int64_t *vectors, int width) {
    int64_t most = 0;
    *vectors = 1;
    for (int64_t i = 0; i < p->operations; i++) {
        const Operation *o = p->operation + i;
        if (o->kind != PANELS) continue;
        if (p->lanes == 1) {
            const Buffer *in = p->buffer + o->from;
            const int64_t count = vectors_alone(o, in, rows_alone(o, in, width), width);
            if (count > *vectors) *vectors = count;
            const int64_t floats = (MOST_ROWS * count + 2) * width; /* a vector may begin at the last result */
            if (floats > most) most = floats;
            continue;
        }
        const int64_t sites = rows_together(o, p->lanes / width) * o->columns;
        if (sites * p->lanes / width > *vectors) *vectors = sites * p->lanes / width;
        const int64_t rows = o->parts ? p->buffer[o->to].channels : MOST_ROWS;
        if (o->pool > 1 && sites * rows > most) most = sites * rows;
    }
    return most * p->lanes;
}

static int64_t buffer_floats(const Program *p) {
    int64_t total = 0;
    for (int64_t i = 0; i < p->buffers; i++) total += round_up(p->buffer[i].channels * plane(p->buffer + i) * p->lanes);
    return total;
}

/* Bytes that a thread works in; they must be zero before the first run, and come from the run before afterwards. */
int64_t space_bytes(const Program *p, int set) {
    int64_t vectors;
    const int64_t channel = round_up(largest_channel(p, &vectors, kernels(set).width));
    const int64_t addresses = round_up(p->buffers) + 2 * round_up(vectors);
    return (buffer_floats(p) + channel) * (int64_t)sizeof(float) + addresses * 8;
}

static Space make_space(const Program *p, int width, char *memory) {
    Space s;
    int64_t vectors;
    const int64_t channel = round_up(largest_channel(p, &vectors, width));
    float *floats = (float *)memory;
    char *rest = memory + (buffer_floats(p) + channel) * (int64_t)sizeof(float);
    s.buffer = (float **)rest;
    s.from = (const float **)(rest + 8 * round_up(p->buffers));
    s.to = (int64_t *)(rest + 8 * (round_up(p->buffers) + round_up(vectors)));
    for (int64_t i = 0; i < p->buffers; i++) {
        s.buffer[i] = floats;
        floats += round_up(p->buffer[i].channels * plane(p->buffer + i) * p->lanes);
    }
    s.channel = floats;
    return s;
}

static void run_panels(const Program *p, const Operation *o, Space *s, const Kernels *k, const int64_t *offsets) {
    const Buffer *in = p->buffer + o->from, *out = p->buffer + o->to;
    const int64_t lanes = p->lanes, per_site = lanes / k->width, pooled = o->pool > 1;
    const int64_t columns = pooled ? o->columns : wide(out), together = rows_together(o, per_site);
    const int64_t whole = o->rows / o->pool * o->pool; /* rows that no pool takes are not needed */
    const int even = o->step_right == 1 && o->columns * per_site % EVEN == 0;
    Operation pooling = *o;
    pooling.first_row = pooling.first_column = 0;
    pooling.columns = o->columns / o->pool;
    pooling.step_down = pooling.step_right = pooling.window_down = pooling.window_right = o->pool;
    for (int64_t top = 0; top < whole; top += together) {
        const int64_t rows = whole - top < together ? whole - top : together;
        int64_t count = 0;
        for (int64_t y = 0; y < rows; y++)
            for (int64_t x = 0; x < o->columns; x++)
                for (int64_t i = 0; i < per_site; i++, count++) {
                    const int64_t row = o->first_row + (top + y) * o->step_down;
                    const int64_t column = o->first_column + x * o->step_right;
                    s->from[count] = s->buffer[o->from] + (row * wide(in) + column) * lanes + i * k->width;
                    s->to[count] = (y * columns + x) * lanes + i * k->width;
                }
        pooling.rows = rows / o->pool;
        const int64_t corner = (out->top + top / o->pool) * wide(out) + out->left;
        for (int64_t i = o->panel; i < o->panel + o->panels; i++) {
            const Panel *panel = p->panels + i;
            float *channel[MOST_ROWS], *home[MOST_ROWS];
            for (int64_t r = 0; r < panel->height; r++) {
                home[r] = s->buffer[o->to] + (panel->rows[r] * plane(out) + corner) * lanes;
                channel[r] = pooled ? s->channel + (o->parts ? panel->rows[r] : r) * count * k->width : home[r];
            }
            /* A maximum and a ReLU may change places; the smaller one goes last. */
            k->panel(panel->height, count, s->from, s->to, offsets + panel->tap, panel->taps,
                     p->weights + panel->weight, p->biases + MOST_ROWS * i, channel, (int)panel->begins,
                     o->relu && !pooled && panel->ends, even);
            for (int64_t r = 0; pooled && panel->ends && r < panel->height; r++)
                k->pool(&pooling, channel[r], o->columns, home[r], wide(out), lanes, 0);
        }
    }
}

/* One example. */
static void run_panels_alone(const Program *p, const Operation *o, Space *s, const Kernels *k) {
    const Buffer *in = p->buffer + o->from, *out = p->buffer + o->to;
    const int64_t pitch = wide(in), whole = o->rows / o->pool * o->pool, together = rows_alone(o, in, k->width);
    const int single = o->rows == 1 && o->columns == 1 && o->pool == 1;
    for (int64_t top = 0; top < whole; top += together) {
        const int64_t rows = whole - top < together ? whole - top : together;
        const int64_t count = vectors_alone(o, in, rows, k->width);
        const float *base = s->buffer[o->from] + (o->first_row + top * o->step_down) * pitch + o->first_column;
        const int64_t corner = (out->top + top / o->pool) * wide(out) + out->left;
        for (int64_t v = 0; v < count; v++) {
            s->from[v] = base + v * k->width;
            s->to[v] = v * k->width;
        }
        for (int64_t i = o->panel; i < o->panel + o->panels; i++) {
            const Panel *panel = p->panels + i;
            const float *weights = p->weights + panel->weight, *bias = p->biases + MOST_ROWS * i;
            float *channel[MOST_ROWS], sums[MOST_ROWS];
            float *home[MOST_ROWS];
            for (int64_t r = 0; r < panel->height; r++) {
                home[r] = s->buffer[o->to] + panel->rows[r] * plane(out) + corner;
                channel[r] = s->channel + r * count * k->width;
                sums[r] = bias[r];
            }
            if (single) {
                k->dots(panel->height, base, p->taps + panel->tap, panel->taps, weights, sums);
                for (int64_t r = 0; r < panel->height; r++) *home[r] = o->relu ? positive(sums[r]) : sums[r];
                continue;
            }
            k->panel(panel->height, count, s->from, s->to, p->taps + panel->tap, panel->taps, weights, bias, channel, 1,
                     0, 1);
            for (int64_t r = 0; r < panel->height; r++)
                k->settle(o, channel[r], pitch, rows / o->pool, o->columns / o->pool, home[r], wide(out));
        }
    }
}

/* One example: maximum or mean over windows of one channel. */
static void pool_alone(const Operation *o, const float *from, int64_t from_columns, float *to, int64_t to_columns) {
    const float share = 1.0f / (float)(o->window_down * o->window_right);
    for (int64_t y = 0; y < o->rows; y++)
        for (int64_t x = 0; x < o->columns; x++) {
            const int64_t row = o->first_row + y * o->step_down, column = o->first_column + x * o->step_right;
            const float *first = from + row * from_columns + column;
            float value = *first;
            for (int64_t i = 0; i < o->window_down; i++)
                for (int64_t j = !i; j < o->window_right; j++) {
                    const float next = first[i * from_columns + j];
                    value = o->kind == MEAN ? value + next : larger(value, next);
                }
            if (o->kind == MEAN) value *= share;
            to[y * to_columns + x] = o->relu ? positive(value) : value;
        }
}

static void run_block(const Program *p, Space *s, const Kernels *k, const int64_t *offsets) {
    const int64_t lanes = p->lanes;
    for (int64_t i = 0; i < p->operations; i++) {
        const Operation *o = p->operation + i;
        const Buffer *in = p->buffer + o->from, *out = p->buffer + o->to;
        if (o->kind == PANELS) {
            if (lanes == 1) run_panels_alone(p, o, s, k);
            else run_panels(p, o, s, k, offsets);
            continue;
        }
        for (int64_t c = 0; c < out->channels; c++) {
            const float *from = s->buffer[o->from] + c * plane(in) * lanes;
            float *to = s->buffer[o->to] + (c * plane(out) + out->top * wide(out) + out->left) * lanes;
            if (o->kind == MAXIMUM || o->kind == MEAN) {
                if (lanes == 1) pool_alone(o, from, wide(in), to, wide(out));
                else k->pool(o, from, wide(in), to, wide(out), lanes, o->kind == MEAN);
                continue;
            }
            const Buffer *in2 = o->kind == SUM ? p->buffer + o->from2 : NULL;
            for (int64_t y = 0; y < out->rows; y++) {
                const float *a = from + ((in->top + y) * wide(in) + in->left) * lanes, *b = NULL;
                if (in2) b = s->buffer[o->from2] + (c * plane(in2) + (in2->top + y) * wide(in2) + in2->left) * lanes;
                k->sum(a, b, to + y * wide(out) * lanes, out->columns * lanes, (int)o->relu);
            }
        }
    }
}

/* x: (examples, inputs), y: (examples, outputs), as torch has them.  set: an instruction set of this processor.
   memory: space_bytes() for each thread, aligned to 64 bytes, that no other call uses meanwhile.                     */
void run_program(const Program *p, const float *x, float *y, int64_t examples, int set, int threads, char *memory) {
    const Kernels k = kernels(set);
    const int64_t lanes = p->lanes, blocks = (examples + lanes - 1) / lanes, bytes = space_bytes(p, set);
    if (threads > blocks) threads = (int)blocks;
    if (threads < 1) threads = 1;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
    {
#ifdef _OPENMP
        const int thread = omp_get_thread_num();
#else
        const int thread = 0;
#endif
        Space s = make_space(p, k.width, memory + thread * bytes);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = block * lanes, here = examples - first < lanes ? examples - first : lanes;
            k.to_lanes(x + first * p->inputs, p->inputs, here, s.buffer[p->input], p->places);
            run_block(p, &s, &k, p->taps);
            k.from_lanes(s.buffer[p->output], p->places + p->inputs, p->outputs, here, y + first * p->outputs);
        }
    }
}
