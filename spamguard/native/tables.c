/* Tokens in tables: buckets, rows and sums of cells, for `spamguard.bayes`, which says what they
 * mean. Whole numbers only. */
#include "kernel.h"

#include <string.h>

#define SETS 4 /* sets of tokens, by the two top bits of each */
#define SET_BITS 2
#define AHEAD 32 /* reads of memory that run side by side */

typedef struct {
    size_t messages;
    size_t tokens;
    const uint32_t *token;
    const int64_t *offset; /* messages + 1 of them, or NULL for one message */
    uint32_t drop;         /* bits of a token that its bucket leaves out */
} Tokens;

static size_t start_of(const Tokens *all, size_t message) {
    return all->offset ? (size_t)all->offset[message] : message * all->tokens;
}

/* Whether the offsets cut the tokens into messages, with none left over. */
static int offsets_fit(const Tokens *all) {
    if (all->offset == NULL)
        return 1;
    if (all->offset[0] != 0 || (uint64_t)all->offset[all->messages] != all->tokens)
        return 0;
    for (size_t message = 0; message < all->messages; message++)
        if (all->offset[message] > all->offset[message + 1])
            return 0;
    return 1;
}

/* Writes the buckets of a message and counts those of each set; returns their number. Of neighbours
 * in one bucket the first counts. */
static size_t place_message(const Tokens *all, size_t message, Py_ssize_t *sizes,
                            Py_ssize_t *buckets) {
    size_t kept = 0, end = start_of(all, message + 1);
    for (size_t at = start_of(all, message); at < end; at++) {
        Py_ssize_t bucket = (Py_ssize_t)(all->token[at] >> all->drop);
        if (kept && bucket == buckets[kept - 1])
            continue;
        buckets[kept++] = bucket;
        sizes[all->token[at] >> (32 - SET_BITS)]++;
    }
    return kept;
}

/* An array, as bytes: starts and sizes of the token sets of all messages, then their buckets. */
static PyObject *placed(const Tokens *all) {
    size_t runs = SETS * all->messages, kept = 0, start = 0;
    PyObject *result = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)((2 * runs + all->tokens) * sizeof(Py_ssize_t)));
    if (result == NULL)
        return NULL;
    Py_ssize_t *starts = (Py_ssize_t *)(void *)PyBytes_AsString(result), *sizes = starts + runs;
    memset(sizes, 0, runs * sizeof *sizes);
    for (size_t message = 0; message < all->messages; message++)
        kept += place_message(all, message, sizes + SETS * message, sizes + runs + kept);
    for (size_t run = 0; run < runs; run++) {
        starts[run] = (Py_ssize_t)start;
        start += (size_t)sizes[run];
    }
    PyObject *all_kept = PyBytes_FromStringAndSize(
        (char *)starts, (Py_ssize_t)((2 * runs + kept) * sizeof(Py_ssize_t)));
    Py_DECREF(result);
    return all_kept;
}

PyObject *kernel_place(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {{sizeof(uint32_t), 0}, {sizeof(int64_t), 0}};
    Fixed views[2];
    (void)module;
    if (number != 3)
        return PyErr_Format(PyExc_TypeError, "place(tokens, offsets or None, bits)");
    int is_single = arguments[1] == Py_None;
    long bits = PyLong_AsLong(arguments[2]);
    if (bits == -1 && PyErr_Occurred())
        return NULL;
    if (bits <= SET_BITS || bits >= 32)
        return PyErr_Format(PyExc_ValueError, "tables of 2**%ld buckets", bits);
    /* Without offsets the tokens are held twice: there are always two views to release. */
    PyObject *both[] = {arguments[0], is_single ? arguments[0] : arguments[1]};
    const Shape twice[] = {shapes[0], shapes[is_single ? 0 : 1]};
    if (fix(views, both, twice, 2) < 0)
        return NULL;
    Tokens all = {is_single ? 1 : views[1].count - 1, views[0].count, views[0].data,
                  is_single ? NULL : views[1].data, 32 - (uint32_t)bits};
    PyObject *result = NULL;
    if ((!is_single && views[1].count == 0) || !offsets_fit(&all) ||
        all.messages > (size_t)PY_SSIZE_T_MAX / 256 || all.tokens > (size_t)PY_SSIZE_T_MAX / 32)
        PyErr_SetString(PyExc_ValueError, "offsets do not fit the tokens");
    else
        result = placed(&all);
    release(views, 2);
    return result;
}

static PyObject *outside(void) {
    return PyErr_Format(PyExc_IndexError, "a place is outside its table");
}

/* gather(rows, width, buckets, out): out (k, n) gets the first k columns, k <= width, of n rows. */
static PyObject *gather(const Fixed *rows, size_t width, const Fixed *buckets, const Fixed *out) {
    size_t n = buckets->count, columns = n ? out->count / n : 0,
           height = width ? rows->count / width : 0;
    const Py_ssize_t *bucket = buckets->data;
    if (width == 0 || columns > width || columns * n != out->count)
        return PyErr_Format(PyExc_ValueError, "sizes do not fit together");
    const int32_t *cells = rows->data;
    for (size_t at = 0; at < n; at++) {
        if ((size_t)bucket[at] >= height) /* negative numbers are far above */
            return outside();
        if (at + AHEAD < n && (size_t)bucket[at + AHEAD] < height)
            __builtin_prefetch(cells + (size_t)bucket[at + AHEAD] * width);
        const int32_t *row = cells + (size_t)bucket[at] * width;
        int32_t *into = (int32_t *)out->data + at;
        for (size_t column = 0; column < columns; column++, into += n)
            *into = row[column];
    }
    Py_RETURN_NONE;
}

PyObject *kernel_gather(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {
        {sizeof(int32_t), 0}, {sizeof(Py_ssize_t), 0}, {sizeof(int32_t), 1}};
    Fixed views[3];
    (void)module;
    if (number != 4)
        return PyErr_Format(PyExc_TypeError, "gather(rows, buckets, out, width)");
    size_t width = PyLong_AsSize_t(arguments[3]);
    if ((width == (size_t)-1 && PyErr_Occurred()) || fix(views, arguments, shapes, 3) < 0)
        return NULL;
    PyObject *result = gather(views, width, views + 1, views + 2);
    release(views, 3);
    return result;
}

/* Whether the sizes of runs are not negative and add up to `count`. */
static int covers(const Fixed *sizes, size_t count) {
    size_t rest = count;
    for (size_t run = 0; run < sizes->count; run++) {
        Py_ssize_t size = ((const Py_ssize_t *)sizes->data)[run];
        if (size < 0 || (size_t)size > rest)
            return 0;
        rest -= (size_t)size;
    }
    return rest == 0;
}

/* Clips a cell to -most..most in its place, and returns it. */
static int32_t bounded(int32_t *cell, int32_t most) {
    if (*cell > most)
        *cell = most;
    if (*cell < -most)
        *cell = -most;
    return *cell;
}

enum { CELLS, FIRSTS, BUCKETS, SIZES, OUT, VIEWS, OTHERS = VIEWS, SHARES, FADES, ALL_VIEWS };

#define SHARE_BITS 16

/* Whether the arguments fit together. Loops over runs then only check that a bucket is inside. */
static int fit(const Fixed *views, size_t width) {
    const Fixed *firsts = views + FIRSTS, *sizes = views + SIZES;
    if (width == 0 || views[OUT].count != sizes->count || !covers(sizes, views[BUCKETS].count))
        return 0;
    if (firsts->count != 1 && firsts->count != sizes->count)
        return 0;
    for (size_t at = 0; at < firsts->count; at++)
        if ((size_t)((const Py_ssize_t *)firsts->data)[at] >= width)
            return 0;
    return 1;
}

/* The cells of a run: where its column begins. */
static int32_t *column_of(const Fixed *views, size_t run) {
    const Fixed *firsts = views + FIRSTS;
    return (int32_t *)views[CELLS].data +
           ((const Py_ssize_t *)firsts->data)[firsts->count == 1 ? 0 : run];
}

static PyObject *run_sums(const Fixed *views, size_t width, int32_t most) {
    const Py_ssize_t *bucket = views[BUCKETS].data, *last = bucket + views[BUCKETS].count;
    size_t rows = views[CELLS].count / width;
    for (size_t run = 0; run < views[SIZES].count; run++) {
        int32_t *column = column_of(views, run);
        int64_t sum = 0; /* 2**32 cells of 31 bits fit */
        for (Py_ssize_t rest = ((const Py_ssize_t *)views[SIZES].data)[run]; rest > 0;
             rest--, bucket++) {
            if (last - bucket > AHEAD && (size_t)bucket[AHEAD] < rows)
                __builtin_prefetch(column + (size_t)bucket[AHEAD] * width);
            if ((size_t)*bucket >= rows) /* negative numbers are far above */
                return outside();
            sum += bounded(column + (size_t)*bucket * width, most);
        }
        ((int64_t *)views[OUT].data)[run] = sum;
    }
    Py_RETURN_NONE;
}

static PyObject *add_runs(const Fixed *views, size_t width) {
    const Py_ssize_t *bucket = views[BUCKETS].data;
    size_t rows = views[CELLS].count / width;
    for (size_t run = 0; run < views[SIZES].count; run++) {
        uint32_t *column =
            (uint32_t *)column_of(views, run); /* unsigned: it may wrap, as in numpy */
        uint32_t move = ((const uint32_t *)views[OUT].data)[run];
        const Py_ssize_t *end = bucket + ((const Py_ssize_t *)views[SIZES].data)[run];
        for (; bucket < end && move; bucket++) {
            if ((size_t)*bucket >= rows)
                return outside();
            column[(size_t)*bucket * width] += move;
        }
        bucket = end;
    }
    Py_RETURN_NONE;
}

/* The smaller of two counts, at most the last index of shares; a negative count is damage and
 * counts as zero. */
static size_t rarer(int32_t first, int32_t second, size_t shares) {
    int32_t count = first < second ? first : second;
    if (count < 0)
        return 0;
    return (size_t)count < shares ? (size_t)count : shares - 1;
}

static PyObject *add_shares(const Fixed *views, size_t width, size_t wide) {
    const Py_ssize_t *bucket = views[BUCKETS].data;
    const int32_t *others = views[OTHERS].data, *shares = views[SHARES].data;
    size_t rows = views[CELLS].count / width, other_rows = views[OTHERS].count / wide;
    if (other_rows < rows)
        rows = other_rows;
    for (size_t run = 0; run < views[SIZES].count; run++) {
        int32_t *column = column_of(views, run);
        int64_t move = ((const int32_t *)views[OUT].data)[run],
                fade = ((const int32_t *)views[FADES].data)[run];
        const Py_ssize_t *end = bucket + ((const Py_ssize_t *)views[SIZES].data)[run];
        for (; bucket < end && move; bucket++) {
            if ((size_t)*bucket >= rows)
                return outside();
            int32_t *cell = column + (size_t)*bucket * width;
            int64_t part =
                move * shares[rarer(cell[-1], others[(size_t)*bucket * wide], views[SHARES].count)];
            part += ((int64_t)1 << (SHARE_BITS - 1)) - fade * *cell;
            /* Division rounds towards zero, but numpy rounds down: a negative remainder lowers the
             * quotient by one. */
            int64_t quotient = part / ((int64_t)1 << SHARE_BITS);
            int is_below = part < quotient * ((int64_t)1 << SHARE_BITS);
            *(uint32_t *)cell += (uint32_t)(quotient - is_below);
        }
        bucket = end;
    }
    Py_RETURN_NONE;
}

/* Whether there is a column in front of the column of each run. */
static int have_counts(const Fixed *firsts) {
    for (size_t at = 0; at < firsts->count; at++)
        if (((const Py_ssize_t *)firsts->data)[at] < 1)
            return 0;
    return 1;
}

/* most: negative if numbers are added instead of summed. */
static PyObject *over_runs(PyObject *const *arguments, size_t width, long most) {
    const int sums = most >= 0;
    const Shape shapes[VIEWS] = {
        {sizeof(int32_t), 1},
        {sizeof(Py_ssize_t), 0},
        {sizeof(Py_ssize_t), 0},
        {sizeof(Py_ssize_t), 0},
        {sums ? sizeof(int64_t) : sizeof(int32_t), sums},
    };
    Fixed views[VIEWS];
    PyObject *result = NULL;
    if (fix(views, arguments, shapes, VIEWS) < 0)
        return NULL;
    if (!fit(views, width) || most > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "sizes do not fit together");
    else
        result = sums ? run_sums(views, width, (int32_t)most) : add_runs(views, width);
    release(views, VIEWS);
    return result;
}

/* The width comes first, then arrays in the order of the views. */
PyObject *kernel_run_sums(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    (void)module;
    if (number != 7)
        return PyErr_Format(PyExc_TypeError,
                            "run_sums(width, cells, firsts, buckets, sizes, sums, most)");
    size_t width = PyLong_AsSize_t(arguments[0]);
    long most = PyLong_AsLong(arguments[6]);
    if (PyErr_Occurred())
        return NULL;
    if (most < 0)
        return PyErr_Format(PyExc_ValueError, "a bound below zero");
    return over_runs(arguments + 1, width, most);
}

PyObject *kernel_add_runs(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    (void)module;
    if (number != 6)
        return PyErr_Format(PyExc_TypeError,
                            "add_runs(width, cells, firsts, buckets, sizes, moves)");
    size_t width = PyLong_AsSize_t(arguments[0]);
    if (PyErr_Occurred())
        return NULL;
    return over_runs(arguments + 1, width, -1);
}

PyObject *kernel_add_shares(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {
        {sizeof(int32_t), 1},    {sizeof(Py_ssize_t), 0}, {sizeof(Py_ssize_t), 0},
        {sizeof(Py_ssize_t), 0}, {sizeof(int32_t), 0},    {sizeof(int32_t), 0},
        {sizeof(int32_t), 0},    {sizeof(int32_t), 0},
    };
    Fixed views[ALL_VIEWS];
    PyObject *result = NULL;
    (void)module;
    if (number != 10)
        return PyErr_Format(
            PyExc_TypeError,
            "add_shares(width, cells, firsts, buckets, sizes, moves, others, wide, shares, fades)");
    size_t width = PyLong_AsSize_t(arguments[0]),
           wide = PyErr_Occurred() ? 0 : PyLong_AsSize_t(arguments[7]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *arrays[] = {arguments[1], arguments[2], arguments[3], arguments[4],
                          arguments[5], arguments[6], arguments[8], arguments[9]};
    if (fix(views, arrays, shapes, ALL_VIEWS) < 0)
        return NULL;
    if (!fit(views, width) || wide == 0 || views[SHARES].count == 0 ||
        views[FADES].count != views[SIZES].count || !have_counts(views + FIRSTS))
        PyErr_SetString(PyExc_ValueError, "sizes do not fit together");
    else
        result = add_shares(views, width, wide);
    release(views, ALL_VIEWS);
    return result;
}
