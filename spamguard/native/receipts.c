/* Decodes the token planes of receipts; `spamguard.ledger.codec` describes the format. */
#include "kernel.h"

#include <string.h>

#define PLANES 3

/* The number of low bits of a token in the planes; the other bits are in the bitmap. */
static uint32_t width_of(int many) { return many ? 20 : 24; }

/* One receipt. */
typedef struct {
    const uint8_t *low, *middle, *bitmap;
    size_t bitmap_size;
    size_t count;
    int many; /* written with 20 low bits instead of 24 */
} Planes;

static uint64_t word_at(const uint8_t *bytes, size_t size) {
    uint64_t word = 0;
    memcpy(&word, bytes, size < sizeof word ? size : sizeof word);
    return word;
}

static uint32_t low_bits(const Planes *planes, size_t at) {
    uint32_t low = planes->low[2 * at] | (uint32_t)planes->low[2 * at + 1] << 8;
    if (planes->many)
        return low | (uint32_t)(planes->middle[at / 2] >> (at % 2 ? 4 : 0) & 15) << 16;
    return low | (uint32_t)planes->middle[at] << 16;
}

/* Writes the tokens to `out`; returns whether the planes hold the right number of rising tokens. */
static int decode(const Planes *planes, uint32_t *out) {
    uint32_t width = width_of(planes->many);
    size_t decoded = 0;
    for (size_t byte = 0; byte < planes->bitmap_size; byte += 8) {
        for (uint64_t bits = word_at(planes->bitmap + byte, planes->bitmap_size - byte); bits;
             bits &= bits - 1) {
            if (decoded == planes->count)
                return 0;
            size_t high = 8 * byte + (size_t)__builtin_ctzll(bits) -
                          decoded; /* the number of zero bits before it */
            if (high >> (32 - width))
                return 0;
            out[decoded] = (uint32_t)high << width | low_bits(planes, decoded);
            if (decoded && out[decoded] <= out[decoded - 1])
                return 0;
            decoded++;
        }
    }
    return decoded == planes->count;
}

/* Gets the planes of receipt `at`; 0 with an error set if one is too short. */
static int take_planes(PyObject *const *columns, Py_ssize_t at, size_t count, size_t most_few,
                       Planes *planes) {
    char *bytes[PLANES];
    Py_ssize_t sizes[PLANES];
    for (int plane = 0; plane < PLANES; plane++) {
        PyObject *item =
            PyTuple_GetItem(columns[plane], at); /* borrowed: the caller's tuple holds it */
        if (item == NULL || PyBytes_AsStringAndSize(item, bytes + plane, sizes + plane) < 0)
            return 0;
    }
    *planes = (Planes){
        (uint8_t *)bytes[0], (uint8_t *)bytes[1], (uint8_t *)bytes[2], (size_t)sizes[2], count,
        count > most_few};
    if ((size_t)sizes[0] / 2 >= count &&
        (size_t)sizes[1] >= (planes->many ? (count + 1) / 2 : count))
        return 1;
    PyErr_SetString(PyExc_ValueError, "a plane is too short");
    return 0;
}

static PyObject *decode_all(PyObject *const *columns, const Fixed *counts, size_t most_few,
                            const Fixed *out) {
    size_t done = 0;
    for (size_t at = 0; at < counts->count; at++) {
        int64_t count = ((const int64_t *)counts->data)[at];
        Planes planes;
        if (count < 0 || (uint64_t)count > out->count - done)
            return PyErr_Format(PyExc_ValueError, "sizes do not fit together");
        if (!take_planes(columns, (Py_ssize_t)at, (size_t)count, most_few, &planes))
            return NULL;
        if (!decode(&planes, (uint32_t *)out->data + done))
            Py_RETURN_FALSE;
        done += (size_t)count;
    }
    return PyBool_FromLong(done == out->count);
}

PyObject *kernel_receipts(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {{sizeof(int64_t), 0}, {sizeof(uint32_t), 1}};
    Fixed views[2];
    (void)module;
    if (number != 6)
        return PyErr_Format(
            PyExc_TypeError,
            "receipts(counts, out, low planes, middle planes, bitmaps, most of few)");
    size_t most_few = PyLong_AsSize_t(arguments[5]);
    if ((most_few == (size_t)-1 && PyErr_Occurred()) || fix(views, arguments, shapes, 2) < 0)
        return NULL;
    PyObject *result = decode_all(arguments + 2, views, most_few, views + 1);
    release(views, 2);
    return result;
}
