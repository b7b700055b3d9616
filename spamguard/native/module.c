/* The module `spamguard.native.compiled`, and access to the memory of arguments. */
#include "kernel.h"

static int fix_one(Fixed *fixed, PyObject *argument, const Shape *shape) {
    Py_buffer *view = &fixed->view;
    if (PyObject_GetBuffer(argument, view, PyBUF_ND | (shape->written ? PyBUF_WRITABLE : 0)) < 0)
        return -1;
    fixed->data = view->buf;
    fixed->width = view->ndim == 2 ? (size_t)view->shape[1] : 1;
    fixed->count = fixed->width ? (size_t)view->len / shape->item / fixed->width : 0;
    /* Bytes may hold items of any size; the items of an array must have this size. */
    int fits =
        view->itemsize == (Py_ssize_t)shape->item || (view->itemsize == 1 && !shape->written);
    if (fits && (size_t)view->len % shape->item == 0 && (uintptr_t)view->buf % shape->item == 0)
        return 0;
    PyBuffer_Release(view);
    PyErr_Format(PyExc_ValueError, "an argument is no array of items of %zu bytes", shape->item);
    return -1;
}

int fix(Fixed *views, PyObject *const *arguments, const Shape *shapes, size_t number) {
    for (size_t at = 0; at < number; at++)
        if (fix_one(views + at, arguments[at], shapes + at) < 0) {
            release(views, at);
            return -1;
        }
    return 0;
}

void release(Fixed *views, size_t number) {
    for (size_t at = 0; at < number; at++)
        PyBuffer_Release(&views[at].view);
}

#define FUNCTION(name, about)                                                                      \
    {#name, (PyCFunction)(void (*)(void))kernel_##name, METH_FASTCALL, about}

static PyMethodDef functions[] = {
    FUNCTION(tokens, "The distinct tokens of one message, sorted, as bytes."),
    FUNCTION(places, "The tokens of some buckets in one message, and the text of each."),
    FUNCTION(place, "Where tokens lie in tables, as bytes."),
    FUNCTION(run_sums, "Sums over runs of cells, each bounded first."),
    FUNCTION(count_runs, "Adds one to each cell of runs."),
    FUNCTION(add_shares,
             "Adds to each cell of a run its share of a number, by two counts, and lets it fade."),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "compiled",
    "The inner loops of spamguard, compiled.",
    0,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit_compiled(void);

/* `spamguard.native` checks VERSION, so a module built from an older source is never called. Raise
 * it with every change of what a function takes or returns. */
PyMODINIT_FUNC PyInit_compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddIntConstant(module, "VERSION", 14) == 0)
        return module;
    Py_DECREF(module);
    return NULL;
}
