/* Runs a compressed network on blocks of examples, a vector lane per example: a weight that is zero costs nothing, whatever
   its neighbours are, and everything between input and output stays in the cache.                                    */
#include "engine.h"

#include <stddef.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { EVEN = 8 }; /* vectors that follow each other */

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

static Kernels kernels(int set) {
#ifdef HAS_X86
    if (set == AVX512) return (Kernels){16, panel_avx512, pool_avx512, sum_avx512, to_lanes_avx512, from_lanes_avx512};
    if (set == AVX2) return (Kernels){8, panel_avx2, pool_avx2, sum_avx2, to_lanes_avx2, from_lanes_avx2};
#endif
    (void)set;
    return (Kernels){4, panel_portable, pool_portable, sum_portable, to_lanes_portable, from_lanes_portable};
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

static int64_t largest_channel(const Program *p, int64_t *vectors, int width) {
    int64_t most = 0;
    *vectors = 1;
    for (int64_t i = 0; i < p->operations; i++) {
        const Operation *o = p->operation + i;
        if (o->kind != PANELS) continue;
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

static void run_block(const Program *p, Space *s, const Kernels *k, const int64_t *offsets) {
    const int64_t lanes = p->lanes;
    for (int64_t i = 0; i < p->operations; i++) {
        const Operation *o = p->operation + i;
        const Buffer *in = p->buffer + o->from, *out = p->buffer + o->to;
        if (o->kind == PANELS) {
            run_panels(p, o, s, k, offsets);
            continue;
        }
        for (int64_t c = 0; c < out->channels; c++) {
            const float *from = s->buffer[o->from] + c * plane(in) * lanes;
            float *to = s->buffer[o->to] + (c * plane(out) + out->top * wide(out) + out->left) * lanes;
            if (o->kind == MAXIMUM || o->kind == MEAN) {
                k->pool(o, from, wide(in), to, wide(out), lanes, o->kind == MEAN);
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
