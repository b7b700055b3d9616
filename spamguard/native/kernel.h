/* What the C files share: arguments as arrays of a known item size. Uses only the stable ABI of
 * CPython 3.11. */
#ifndef SPAMGUARD_KERNEL_H
#define SPAMGUARD_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

/* Tokens are hashed lowest byte first, and 64 bits are a size. Elsewhere numpy does the work. */
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || SIZE_MAX != UINT64_MAX
#error "the kernel is for little-endian machines of 64 bits"
#endif

/* The memory of an argument during a call: rows of items, or of one item each. */
typedef struct {
    Py_buffer view;
    void *data;
    size_t count; /* rows */
    size_t width; /* items of a row */
} Fixed;

/* What an argument must be: the size of an item, and whether it is written to. */
typedef struct {
    size_t item;
    int written;
} Shape;

/* Gets the memory of all arguments; -1 with an error set, and none of it is held. */
int fix(Fixed *views, PyObject *const *arguments, const Shape *shapes, size_t number);
void release(Fixed *views, size_t number);

PyObject *kernel_tokens(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *kernel_places(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *kernel_place(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *kernel_run_sums(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *kernel_count_runs(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *kernel_add_shares(PyObject *module, PyObject *const *arguments, Py_ssize_t number);

#endif
