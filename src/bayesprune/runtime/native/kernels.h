/* The body of the engine for one instruction set: NAME(x), WIDTH floats per vector, VECTORS of registers to sum in. */

typedef float NAME(Vector) __attribute__((vector_size(4 * WIDTH), aligned(4 * WIDTH)));
#define V NAME(Vector)

typedef int32_t NAME(Mask) __attribute__((vector_size(4 * WIDTH)));

static inline V NAME(chosen)(NAME(Mask) which, V yes, V no) {
    return (V)((which & (NAME(Mask))yes) | (~which & (NAME(Mask))no));
}

/* As torch has them: what is not a number stays so. */
static inline V NAME(larger)(V a, V b) { return NAME(chosen)((a < b) | (b != b), b, a); }
static inline V NAME(positive)(V a) { return NAME(chosen)(a < (V){0}, (V){0}, a); }

typedef float NAME(Loose) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* One tile: H rows of a panel at T vectors of results.  from[t]: where the vector's input begins, less the tap's offset;
   to[t]: offset of the result in a channel.                                                                          */
#define TILE(H, T)                                                                                                     \
    static inline __attribute__((always_inline)) void NAME(tile_##H##_##T)(                                            \
        const float *const *from, const int64_t *to, const int64_t *offsets, int64_t taps, const float *weights,       \
        const float *bias, float *const *channel, int begins, int relu) {                                              \
        V sum[H][T];                                                                                                   \
        for (int r = 0; r < H; r++)                                                                                    \
            for (int t = 0; t < T; t++)                                                                                \
                sum[r][t] = begins ? bias[r] - (V){0} : *(const V *)(channel[r] + to[t]);                              \
        for (int64_t k = 0; k < taps; k++) {                                                                           \
            const int64_t offset = offsets[k];                                                                         \
            const float *w = weights + k * H;                                                                          \
            V x[T];                                                                                                    \
            for (int t = 0; t < T; t++) x[t] = *(const NAME(Loose) *)(from[t] + offset);                               \
            for (int r = 0; r < H; r++)                                                                                \
                for (int t = 0; t < T; t++) sum[r][t] += w[r] * x[t];                                                  \
        }                                                                                                              \
        for (int r = 0; r < H; r++)                                                                                    \
            for (int t = 0; t < T; t++) {                                                                              \
                V value = relu ? NAME(positive)(sum[r][t]) : sum[r][t];                                          \
                *(V *)(channel[r] + to[t]) = value;                                                                    \
            }                                                                                                          \
    }

TILE(1, 1) TILE(1, 2) TILE(1, 4) TILE(1, 8)
TILE(2, 1) TILE(2, 2) TILE(2, 4)
TILE(4, 1) TILE(4, 2)
TILE(8, 1)
#if VECTORS >= 32
TILE(2, 8) TILE(4, 4) TILE(8, 2)
#endif

#if VECTORS >= 32
/* One row at two times EVEN vectors of results that follow each other, in the input as well: so few loads of addresses
   and weights go with the products that these can follow each other without a pause.                                 */
static void NAME(even)(const float *const *from, const int64_t *to, const int64_t *offsets, int64_t taps,
                       const float *weights, float bias, float *channel, int begins, int relu) {
    const float *const one = from[0], *const other = from[EVEN];
    float *const first = channel + to[0], *const second = channel + to[EVEN];
    V a[EVEN], b[EVEN];
    for (int t = 0; t < EVEN; t++) {
        a[t] = begins ? bias - (V){0} : *(const V *)(first + t * WIDTH);
        b[t] = begins ? bias - (V){0} : *(const V *)(second + t * WIDTH);
    }
    for (int64_t k = 0; k < taps; k++) {
        const float *x = one + offsets[k], *y = other + offsets[k];
        const V w = weights[k] - (V){0};
        for (int t = 0; t < EVEN; t++) a[t] += w * *(const NAME(Loose) *)(x + t * WIDTH);
        for (int t = 0; t < EVEN; t++) b[t] += w * *(const NAME(Loose) *)(y + t * WIDTH);
    }
    for (int t = 0; t < EVEN; t++) {
        *(V *)(first + t * WIDTH) = relu ? NAME(positive)(a[t]) : a[t];
        *(V *)(second + t * WIDTH) = relu ? NAME(positive)(b[t]) : b[t];
    }
}
#endif

/* All tiles of a panel; `from` and `to` list every vector of a channel's results.  even: whether from each EVENth on
   EVEN of them follow each other.                                                                                    */
#define ALL(H, T)                                                                                                      \
    for (; v + T <= count; v += T)                                                                                     \
        NAME(tile_##H##_##T)(from + v, to + v, offsets, taps, weights, bias, channel, begins, relu);

static void NAME(panel)(int64_t height, int64_t count, const float *const *from, const int64_t *to,
                        const int64_t *offsets, int64_t taps, const float *weights, const float *bias,
                        float *const *channel, int begins, int relu, int even) {
    int64_t v = 0;
    (void)even;
#if VECTORS >= 32
    for (; even && height == 1 && v + 2 * EVEN <= count; v += 2 * EVEN)
        NAME(even)(from + v, to + v, offsets, taps, weights, bias[0], channel[0], begins, relu);
#endif
    switch (height) {
    case 1: ALL(1, 8) ALL(1, 4) ALL(1, 2) ALL(1, 1) break;
#if VECTORS >= 32
    case 2: ALL(2, 8) ALL(2, 4) ALL(2, 2) ALL(2, 1) break;
    case 4: ALL(4, 4) ALL(4, 2) ALL(4, 1) break;
    default: ALL(8, 2) ALL(8, 1) break;
#else
    case 2: ALL(2, 4) ALL(2, 2) ALL(2, 1) break;
    case 4: ALL(4, 2) ALL(4, 1) break;
    default: ALL(8, 1) break;
#endif
    }
}

/* Maximum or mean over windows of one channel. */
static void NAME(pool)(const Operation *o, const float *from, int64_t from_columns, float *to, int64_t to_columns,
                       int64_t lanes, int mean) {
    const float share = 1.0f / (float)(o->window_down * o->window_right);
    for (int64_t y = 0; y < o->rows; y++)
        for (int64_t x = 0; x < o->columns; x++)
            for (int64_t lane = 0; lane < lanes; lane += WIDTH) {
                const int64_t row = o->first_row + y * o->step_down, column = o->first_column + x * o->step_right;
                const float *first = from + (row * from_columns + column) * lanes + lane;
                V value = *(const V *)first;
                for (int64_t i = 0; i < o->window_down; i++)
                    for (int64_t j = !i; j < o->window_right; j++) {
                        const V next = *(const V *)(first + (i * from_columns + j) * lanes);
                        value = mean ? value + next : NAME(larger)(value, next);
                    }
                if (mean) value *= share;
                if (o->relu) value = NAME(positive)(value);
                *(V *)(to + (y * to_columns + x) * lanes + lane) = value;
            }
}

/* a + b, or a alone, of `count` floats. */
static void NAME(sum)(const float *a, const float *b, float *to, int64_t count, int relu) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        V value = *(const NAME(Loose) *)(a + i);
        if (b) value += *(const NAME(Loose) *)(b + i);
        *(NAME(Loose) *)(to + i) = relu ? NAME(positive)(value) : value;
    }
    for (; i < count; i++) {
        const float value = b ? a[i] + b[i] : a[i];
        to[i] = relu ? positive(value) : value;
    }
}

/* One example: the maximum of every two neighbours of a and b, WIDTH of them. */
static inline __attribute__((always_inline)) V NAME(halved)(const float *a, const float *b) {
    NAME(Mask) even, odd;
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; j++) {
        even[j] = 2 * j;
        odd[j] = 2 * j + 1;
    }
    const V low = NAME(larger)(*(const NAME(Loose) *)a, *(const NAME(Loose) *)b);
    const V high = NAME(larger)(*(const NAME(Loose) *)(a + WIDTH), *(const NAME(Loose) *)(b + WIDTH));
    return NAME(larger)(__builtin_shuffle(low, high, even), __builtin_shuffle(low, high, odd));
}

/* One example: results of one channel from where they were computed, `pitch` from row to row, to their place, with the
   maximum over pool x pool of them and the ReLU of o; rows, columns: after the pooling.  Two vectors may be read from
   the last result on.                                                                                                */
static void NAME(settle)(const Operation *o, const float *from, int64_t pitch, int64_t rows, int64_t columns, float *to,
                         int64_t to_columns) {
    const int64_t down = o->step_down * pitch, pool = o->pool;
    for (int64_t y = 0; y < rows; y++) {
        const float *row = from + y * pool * down;
        float *result = to + y * to_columns;
        int64_t x = 0;
        for (; o->step_right == 1 && pool <= 2 && x < columns; x += WIDTH) {
            V value = pool == 1 ? (V) * (const NAME(Loose) *)(row + x) : NAME(halved)(row + 2 * x, row + down + 2 * x);
            if (o->relu) value = NAME(positive)(value);
            if (x + WIDTH <= columns) *(NAME(Loose) *)(result + x) = value;
            for (int64_t j = x; x + WIDTH > columns && j < columns; j++) result[j] = value[j - x];
        }
        for (; x < columns; x++) {
            const float *first = row + x * pool * o->step_right;
            float value = *first;
            for (int64_t i = 0; i < pool; i++)
                for (int64_t j = !i; j < pool; j++) value = larger(value, first[i * down + j * o->step_right]);
            result[x] = o->relu ? positive(value) : value;
        }
    }
}

/* One example: a panel at a single place, with STEPS sums that do not wait for each other. */
#define DOTS(H)                                                                                                        \
    static void NAME(dots_##H)(const float *x, const int64_t *offsets, int64_t taps, const float *w, float *sums) {    \
        float part[STEPS][H] = {{0}};                                                                                  \
        int64_t k = 0;                                                                                                 \
        for (; k + STEPS <= taps; k += STEPS)                                                                          \
            for (int s = 0; s < STEPS; s++)                                                                            \
                for (int r = 0; r < H; r++) part[s][r] += w[(k + s) * H + r] * x[offsets[k + s]];                      \
        for (; k < taps; k++)                                                                                          \
            for (int r = 0; r < H; r++) part[0][r] += w[k * H + r] * x[offsets[k]];                                    \
        for (int r = 0; r < H; r++)                                                                                    \
            for (int s = 0; s < STEPS; s++) sums[r] += part[s][r];                                                     \
    }

DOTS(1) DOTS(2) DOTS(4) DOTS(8)

static void NAME(dots)(int64_t height, const float *x, const int64_t *offsets, int64_t taps, const float *weights,
                       float *sums) {
    switch (height) {
    case 1: NAME(dots_1)(x, offsets, taps, weights, sums); break;
    case 2: NAME(dots_2)(x, offsets, taps, weights, sums); break;
    case 4: NAME(dots_4)(x, offsets, taps, weights, sums); break;
    default: NAME(dots_8)(x, offsets, taps, weights, sums); break;
    }
}

/* One stage of a transposition: blocks of half x half of each pair of vectors change places. */
static inline __attribute__((always_inline)) void NAME(exchange)(V *rows, const int half) {
    NAME(Mask) low, high; /* of the pair, elements of the second from WIDTH on */
#pragma GCC unroll 16
    for (int j = 0; j < WIDTH; j++) {
        low[j] = j & half ? WIDTH + j - half : j;
        high[j] = j & half ? WIDTH + j : j + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) {
        if (i & half) continue;
        const V a = rows[i], b = rows[i | half];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i | half] = __builtin_shuffle(a, b, high);
    }
}

/* WIDTH vectors as the columns of what they were the rows of. */
static inline __attribute__((always_inline)) void NAME(transpose)(V *rows) {
#if WIDTH > 8
    NAME(exchange)(rows, 8);
#endif
#if WIDTH > 4
    NAME(exchange)(rows, 4);
#endif
    NAME(exchange)(rows, 2);
    NAME(exchange)(rows, 1);
}

/* `here` examples of `values` floats each, one after another, to lanes: value q goes to to[places[q] + lane]. */
static void NAME(to_lanes)(const float *x, int64_t values, int64_t here, float *to, const int64_t *places) {
    int64_t lane = 0;
    for (; lane + WIDTH <= here; lane += WIDTH) {
        const float *first = x + lane * values;
        int64_t q = 0;
        for (; q + WIDTH <= values; q += WIDTH) {
            V rows[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) rows[i] = *(const NAME(Loose) *)(first + i * values + q);
            NAME(transpose)(rows);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) *(V *)(to + places[q + i] + lane) = rows[i];
        }
        for (; q < values; q++)
            for (int i = 0; i < WIDTH; i++) to[places[q] + lane + i] = first[i * values + q];
    }
    for (; lane < here; lane++)
        for (int64_t q = 0; q < values; q++) to[places[q] + lane] = x[lane * values + q];
}

/* The way back. */
static void NAME(from_lanes)(const float *from, const int64_t *places, int64_t values, int64_t here, float *y) {
    int64_t lane = 0;
    for (; lane + WIDTH <= here; lane += WIDTH) {
        float *first = y + lane * values;
        int64_t q = 0;
        for (; q + WIDTH <= values; q += WIDTH) {
            V rows[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) rows[i] = *(const V *)(from + places[q + i] + lane);
            NAME(transpose)(rows);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) *(NAME(Loose) *)(first + i * values + q) = rows[i];
        }
        for (; q < values; q++)
            for (int i = 0; i < WIDTH; i++) first[i * values + q] = from[places[q] + lane + i];
    }
    for (; lane < here; lane++)
        for (int64_t q = 0; q < values; q++) y[lane * values + q] = from[places[q] + lane];
}

#undef ALL
#undef DOTS
#undef TILE
#undef V
