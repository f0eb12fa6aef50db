"""Takes the GPU's memory, all but as many MiB as the argument says, until the input ends."""

import ctypes
import sys

STEP = 2 << 20


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = (
        ctypes.c_void_p(),
        ctypes.c_size_t(),
        ctypes.c_size_t(),
    )
    for code in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
    ):
        if code:
            sys.exit(f"hog: CUDA error {code}")
    left = int(sys.argv[1]) << 20
    taken = 0
    size = 8 << 30
    while size >= STEP:
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        memory = ctypes.c_uint64()
        enough = free.value >= size + left
        if (
            enough
            and cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
        ):
            taken += size
        else:
            size //= 2
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(f"took {taken >> 20} MiB, {free.value >> 20} MiB are free", flush=True)
    sys.stdin.read()


main()
