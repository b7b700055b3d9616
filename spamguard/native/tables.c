/* Tokens in tables, for `spamguard.bayes`, which says what they mean. Whole numbers only. */
#include "kernel.h"

#include <string.h>

#define SETS 4 /* sets of tokens, by the two top bits of each */
#define SET_BITS 2
#define BLOCK_BITS 2 /* of rows that stand together */
#define AHEAD 64     /* reads of memory that run side by side */
#define KNOWN 3      /* columns of a row: two counts and a weight */
#define SHARE_BITS 16

/* Arguments of functions over runs of rows of a table; EACH is a number for each run. */
enum { CELLS, PLACES, SIZES, EACH, OTHERS, SHARES, FADES, ALL_VIEWS };

static PyObject *outside(void) {
    return PyErr_Format(PyExc_IndexError, "a place is outside its table");
}

static PyObject *misfit(void) {
    return PyErr_Format(PyExc_ValueError, "arguments do not fit together");
}

/* Calls `work` with arrays, at most ALL_VIEWS, and the whole numbers behind them, at most two. */
static PyObject *call(const char *usage, PyObject *const *arguments, size_t number,
                      const Shape *shapes, size_t arrays, size_t numbers,
                      PyObject *(*work)(const Fixed *views, const long *numbers)) {
    Fixed views[ALL_VIEWS];
    long values[2] = {0, 0};
    if (number != arrays + numbers)
        return PyErr_Format(PyExc_TypeError, "%s", usage);
    for (size_t at = 0; at < numbers; at++)
        if ((values[at] = PyLong_AsLong(arguments[arrays + at])) == -1 && PyErr_Occurred())
            return NULL;
    if (fix(views, arguments, shapes, arrays) < 0)
        return NULL;
    PyObject *result = work(views, values);
    release(views, arrays);
    return result;
}

/* The function for Python: by the whole numbers behind its arrays, and these. */
#define KERNEL(name, usage, numbers, ...)                                                          \
    PyObject *kernel_##name(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {     \
        static const Shape shapes[] = {__VA_ARGS__};                                               \
        (void)module;                                                                              \
        return call(usage, arguments, (size_t)number, shapes, sizeof shapes / sizeof *shapes,      \
                    numbers, name);                                                                \
    }

/* Whether the offsets cut the tokens into messages, with none left over. */
static int offsets_fit(const Fixed *tokens, const Fixed *offsets) {
    const int64_t *offset = offsets->data;
    if (offsets->count == 0 || offset[0] != 0 || offsets->count > (size_t)PY_SSIZE_T_MAX / 256)
        return 0;
    for (size_t at = 1; at < offsets->count; at++)
        if (offset[at - 1] > offset[at])
            return 0;
    return (uint64_t)offset[offsets->count - 1] == tokens->count;
}

/* Fills out (KNOWN, n) with columns of n buckets, and sums with those of the last over runs; 0 if
 * one is outside. First all rows are found: their memory is on its way together. */
static int gather(const Fixed *rows, const Fixed *blocks, const size_t *bucket, size_t n,
                  double *out, const size_t *sizes, size_t *sums) {
    const uint32_t *block = blocks->data;
    const int32_t *cells = rows->data;
    size_t width = rows->width, height = rows->count, number = blocks->count;
    size_t *row = (size_t *)(void *)(out + (KNOWN - 1) * n); /* until it is read */
    for (size_t at = 0; at < n; at++) {
        if (bucket[at] >> BLOCK_BITS >= number)
            return 0;
        row[at] = (size_t)block[bucket[at] >> BLOCK_BITS] << BLOCK_BITS |
                  (bucket[at] & ((1 << BLOCK_BITS) - 1));
        if (row[at] >= height)
            return 0;
        __builtin_prefetch(cells + row[at] * width);
    }
    for (size_t at = 0, end = 0; at < n; sizes++, sums++)
        for (end += *sizes; at < end; at++) {
            const int32_t *cell = cells + row[at] * width;
            out[at] = cell[0];
            out[n + at] = cell[1];
            out[2 * n + at] = cell[2];
            *sums += (size_t)cell[2]; /* it may wrap, as negative numbers do */
        }
    return 1;
}

/* Writes the buckets of one message and counts those of each set; returns their number. Of
 * neighbours in one bucket the first counts. */
static size_t place_message(const uint32_t *token, const uint32_t *end, uint32_t drop,
                            size_t *sizes, size_t *buckets, const Fixed *blocks) {
    size_t kept = 0;
    for (; token < end; token++) {
        size_t bucket = *token >> drop;
        if (kept && bucket == buckets[kept - 1])
            continue;
        if (bucket >> BLOCK_BITS < blocks->count) /* will be read soon */
            __builtin_prefetch((const int32_t *)blocks->data + (bucket >> BLOCK_BITS));
        buckets[kept++] = bucket;
        sizes[*token >> (32 - SET_BITS)]++;
    }
    return kept;
}

/* An array, as bytes: starts, sizes and sums of weights of the token sets of all messages, and
 * their buckets; then, if tables have any width, what is known of these. */
static PyObject *place(const Fixed *views, const long *bits) {
    const Fixed *tokens = views, *offsets = views + 1, *rows = views + 2, *blocks = views + 3;
    if (*bits <= SET_BITS || *bits >= 32)
        return PyErr_Format(PyExc_ValueError, "tables of 2**%ld buckets", *bits);
    if (!offsets_fit(tokens, offsets) || (rows->width && rows->width < KNOWN))
        return misfit();
    const int64_t *offset = offsets->data;
    size_t runs = SETS * (offsets->count - 1), used = 3 * runs, start = 0;
    size_t *starts = PyMem_Calloc(used + tokens->count, sizeof *starts), *sizes = starts + runs;
    if (starts == NULL)
        return PyErr_NoMemory();
    for (size_t at = 0; at + 1 < offsets->count; at++)
        used += place_message((const uint32_t *)tokens->data + offset[at],
                              (const uint32_t *)tokens->data + offset[at + 1],
                              32 - (uint32_t)*bits, sizes + SETS * at, starts + used, blocks);
    for (size_t run = 0; run < runs; start += sizes[run++])
        starts[run] = start;
    size_t cells = used + (rows->width ? KNOWN * start : 0);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(cells * sizeof *starts));
    if (result) {
        size_t *all = memcpy(PyBytes_AsString(result), starts, used * sizeof *starts);
        if (rows->width && !gather(rows, blocks, starts + 3 * runs, start, (double *)(all + used),
                                   sizes, all + 2 * runs)) {
            Py_DECREF(result);
            result = outside();
        }
    }
    PyMem_Free(starts);
    return result;
}

KERNEL(place, "place(tokens, offsets, rows, blocks, bits)", 1, {sizeof(uint32_t), 0},
       {sizeof(int64_t), 0}, {sizeof(int32_t), 0}, {sizeof(int32_t), 0})

/* Whether the arguments fit together. Loops over runs then only check that a row is inside. */
static int fit(const Fixed *views) {
    size_t rest = views[PLACES].count;
    for (size_t run = 0; run < views[SIZES].count; run++) {
        Py_ssize_t size = ((const Py_ssize_t *)views[SIZES].data)[run];
        if (size < 0 || (size_t)size > rest)
            return 0;
        rest -= (size_t)size;
    }
    return rest == 0 && views[EACH].count == views[SIZES].count;
}

/* Clips a cell to -most..most in its place, and returns it. */
static int32_t bounded(int32_t *cell, int32_t most) {
    if (*cell > most)
        *cell = most;
    if (*cell < -most)
        *cell = -most;
    return *cell;
}

static PyObject *run_sums(const Fixed *views, const long *numbers) {
    const long column = numbers[0], most = numbers[1];
    const size_t *place = views[PLACES].data, *last = place + views[PLACES].count;
    size_t rows = views[CELLS].count, width = views[CELLS].width;
    int32_t *cells = (int32_t *)views[CELLS].data;
    if (column < 0 || (size_t)column >= width || most < 0 || most > INT32_MAX || !fit(views))
        return misfit();
    cells += column;
    for (size_t run = 0; run < views[SIZES].count; run++) {
        int64_t sum = 0; /* 2**32 cells of 31 bits fit */
        const size_t *end = place + ((const Py_ssize_t *)views[SIZES].data)[run];
        for (; place < end; place++) {
            if (last - place > AHEAD && place[AHEAD] < rows)
                __builtin_prefetch(cells + place[AHEAD] * width);
            if (*place >= rows)
                return outside();
            sum += bounded(cells + *place * width, (int32_t)most);
        }
        ((int64_t *)views[EACH].data)[run] = sum;
    }
    Py_RETURN_NONE;
}

KERNEL(run_sums, "run_sums(cells, places, sizes, sums, column, most)", 2, {sizeof(int32_t), 1},
       {sizeof(size_t), 0}, {sizeof(Py_ssize_t), 0}, {sizeof(int64_t), 1})

static PyObject *count_runs(const Fixed *views, const long *none) {
    const size_t *place = views[PLACES].data;
    uint32_t *cells = views[CELLS].data; /* unsigned: it may wrap, as in numpy */
    (void)none;
    size_t rows = views[CELLS].count, width = views[CELLS].width;
    if (!fit(views))
        return misfit();
    for (size_t run = 0; run < views[SIZES].count; run++) {
        size_t column = ((const size_t *)views[EACH].data)[run];
        const size_t *end = place + ((const Py_ssize_t *)views[SIZES].data)[run];
        for (; place < end; place++) {
            if (*place >= rows || column >= width)
                return outside();
            cells[*place * width + column]++;
        }
    }
    Py_RETURN_NONE;
}

KERNEL(count_runs, "count_runs(cells, places, sizes, columns)", 0, {sizeof(int32_t), 1},
       {sizeof(size_t), 0}, {sizeof(Py_ssize_t), 0}, {sizeof(size_t), 0})

/* The smaller of two counts, at most the last index of shares; a negative count is damage and
 * counts as zero. */
static size_t rarer(int32_t first, int32_t second, size_t shares) {
    int32_t count = first < second ? first : second;
    return count < 0 ? 0 : (size_t)count < shares ? (size_t)count : shares - 1;
}

/* The counts are in the column before, and in the first one of the others. */
static PyObject *add_shares(const Fixed *views, const long *column) {
    const size_t *place = views[PLACES].data;
    const Fixed *cells = views + CELLS, *others = views + OTHERS;
    const int32_t *shares = views[SHARES].data;
    size_t rows = cells->count < others->count ? cells->count : others->count;
    if (*column < 1 || (size_t)*column >= cells->width || views[SHARES].count == 0 || !fit(views) ||
        views[FADES].count != views[SIZES].count)
        return misfit();
    for (size_t run = 0; run < views[SIZES].count; run++) {
        int64_t move = ((const int32_t *)views[EACH].data)[run],
                fade = ((const int32_t *)views[FADES].data)[run];
        const size_t *end = place + ((const Py_ssize_t *)views[SIZES].data)[run];
        for (; place < end && move; place++) {
            if (*place >= rows)
                return outside();
            int32_t *cell = (int32_t *)cells->data + *place * cells->width + *column;
            int32_t other = ((const int32_t *)others->data)[*place * others->width];
            int64_t part = move * shares[rarer(cell[-1], other, views[SHARES].count)];
            part += ((int64_t)1 << (SHARE_BITS - 1)) - fade * *cell;
            int64_t quotient = part / ((int64_t)1 << SHARE_BITS); /* rounds towards zero */
            quotient -= part < quotient * ((int64_t)1 << SHARE_BITS); /* down, as in numpy */
            *(uint32_t *)cell += (uint32_t)quotient;
        }
        place = end;
    }
    Py_RETURN_NONE;
}

KERNEL(add_shares, "add_shares(cells, places, sizes, moves, others, shares, fades, column)", 1,
       {sizeof(int32_t), 1}, {sizeof(size_t), 0}, {sizeof(Py_ssize_t), 0}, {sizeof(int32_t), 0},
       {sizeof(int32_t), 0}, {sizeof(int32_t), 0}, {sizeof(int32_t), 0})
