/* How Python calls kernels: arrays are taken by the buffer protocol and checked, the GIL is let go of meanwhile.
   Of Python the stable ABI alone is used, so that one library serves all versions from 3.11. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* What numba's code calls when the last owner of an array is gone; arrays of callers have none that it knows. */
void NRT_MemInfo_call_dtor(void *owner) { (void)owner; }
void NRT_Free(void *memory) { (void)memory; }

/* Each of these returns 0, or -1 with an error of Python set. */

/* Take an array of elements whose format is one of `formats` and that have so many bytes; it is held then. */
static int take_array(PyObject *given, Py_buffer *arrays, int *held, const char *formats, Py_ssize_t bytes, int writable) {
    Py_buffer *array = &arrays[*held];
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(given, array, flags) < 0)
        return -1;
    *held += 1;
    const char *format = array->format == NULL ? "B" : array->format;
    if (format[0] != 0 && strchr("@=<^", format[0]) != NULL)
        format++;
    if (array->ndim == 1 && array->itemsize == bytes && strlen(format) == 1 && strchr(formats, format[0]) != NULL)
        return 0;
    PyErr_Format(PyExc_TypeError, "a kernel takes an array of one dimension with elements %s of %zd bytes, got %s of %zd",
                 formats, bytes, format, array->itemsize);
    return -1;
}

static int take_unsigned(PyObject *given, uint64_t *number) {
    PyObject *index = PyNumber_Index(given);
    if (index == NULL)
        return -1;
    *number = PyLong_AsUnsignedLongLongMask(index);
    Py_DECREF(index);
    return PyErr_Occurred() == NULL ? 0 : -1;
}

static int take_signed(PyObject *given, int64_t *number) {
    PyObject *index = PyNumber_Index(given);
    if (index == NULL)
        return -1;
    *number = PyLong_AsLongLong(index);
    Py_DECREF(index);
    return *number == -1 && PyErr_Occurred() != NULL ? -1 : 0;
}

static int take_double(PyObject *given, double *number) {
    *number = PyFloat_AsDouble(given);
    return *number == -1.0 && PyErr_Occurred() != NULL ? -1 : 0;
}

static int take_boolean(PyObject *given, int8_t *number) {
    int truth = PyObject_IsTrue(given);
    *number = (int8_t)truth;
    return truth < 0 ? -1 : 0;
}

static int takes(Py_ssize_t given, Py_ssize_t wanted, const char *name) {
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
    return -1;
}

static int raised(int status, const char *name) {
    if (status == 0 || status == -2)
        return 0;
    PyErr_Format(PyExc_RuntimeError, "%s raised an error", name);
    return 1;
}
