/* Header fields: the loop over bytes of `spamguard.mail.headers`, which defines what a field is. */
#include "kernel.h"

#include <string.h>

typedef struct {
    const char *bytes;
    size_t size; /* of the part that may be header */
} Block;

typedef struct {
    size_t name_end, value, value_end;
    size_t next; /* where the line behind the field begins */
} Field;

static int is_blank(char byte) { return byte == ' ' || byte == '\t'; }

static size_t line_end(const Block *block, size_t at) {
    const char *end = memchr(block->bytes + at, '\n', block->size - at);
    return end == NULL ? block->size : (size_t)(end - block->bytes);
}

/* Reads the field that begins at `at`; returns whether there is one. */
static int read_field(const Block *block, size_t at, Field *field) {
    size_t start = at;
    while (at < block->size && block->bytes[at] > ' ' && block->bytes[at] <= '~' &&
           block->bytes[at] != ':')
        at++;
    field->name_end = at;
    while (at < block->size && is_blank(block->bytes[at]))
        at++;
    if (field->name_end == start || at == block->size || block->bytes[at] != ':')
        return 0;
    for (at++; at < block->size && is_blank(block->bytes[at]); at++)
        ;
    field->value = at;
    for (at = line_end(block, at); at + 1 < block->size && is_blank(block->bytes[at + 1]);
         at = line_end(block, at + 1))
        ;
    field->value_end = at;
    field->next = at < block->size ? at + 1 : at;
    return 1;
}

/* Bytes in lower case. Made without content first: Python shares bytes objects of one character,
 * and those must not be written to. */
static PyObject *lowered(const char *bytes, size_t size) {
    PyObject *name = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    char *out = name == NULL ? NULL : PyBytes_AsString(name);
    for (size_t at = 0; out != NULL && at < size; at++)
        out[at] =
            bytes[at] >= 'A' && bytes[at] <= 'Z' ? (char)(bytes[at] + ('a' - 'A')) : bytes[at];
    return name;
}

/* Appends one field; -1 with an error set. */
static int append(PyObject *fields, const Block *block, size_t start, const Field *field) {
    PyObject *name = lowered(block->bytes + start, field->name_end - start);
    PyObject *value = PyBytes_FromStringAndSize(block->bytes + field->value,
                                                (Py_ssize_t)(field->value_end - field->value));
    PyObject *pair = name == NULL || value == NULL ? NULL : PyTuple_Pack(2, name, value);
    int failed = pair == NULL || PyList_Append(fields, pair) < 0;
    Py_XDECREF(pair);
    Py_XDECREF(value);
    Py_XDECREF(name);
    return failed ? -1 : 0;
}

/* The fields from the start on, `most` of them at most, and where the first line begins that
 * belongs to none. */
static PyObject *read_fields(const Block *block, size_t most) {
    PyObject *fields = PyList_New(0);
    Field field;
    size_t at = 0;
    for (size_t number = 0; fields != NULL && read_field(block, at, &field); number++) {
        if (number < most && append(fields, block, at, &field) < 0) {
            Py_DECREF(fields);
            return NULL;
        }
        at = field.next;
    }
    return fields == NULL ? NULL : Py_BuildValue("Nn", fields, (Py_ssize_t)at);
}

PyObject *kernel_fields(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    char *bytes;
    Py_ssize_t size;
    (void)module;
    if (number != 3)
        return PyErr_Format(PyExc_TypeError, "fields(text, most bytes, most fields)");
    size_t window = PyLong_AsSize_t(arguments[1]),
           most = PyErr_Occurred() ? 0 : PyLong_AsSize_t(arguments[2]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[0], &bytes, &size) < 0)
        return NULL;
    return read_fields(&(Block){bytes, (size_t)size < window ? (size_t)size : window}, most);
}
