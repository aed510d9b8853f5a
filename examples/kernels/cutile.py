"""Three cuTile kernels as inference servers have them: vector add, softmax, GEMM; and their signatures."""

from __future__ import annotations

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature

# cuTile reads annotations as objects, not as text, so each of these must be a name of this module.
Size = ct.Constant[int]


@ct.kernel
def vector_add(left, right, out, size: Size):
    """Add two vectors, a tile of ``size`` elements per block."""
    block = ct.bid(0)
    a = ct.load(left, index=(block,), shape=(size,))
    b = ct.load(right, index=(block,), shape=(size,))
    ct.store(out, index=(block,), tile=a + b)


@ct.kernel
def softmax(scores, out, rows: Size, columns: Size):
    """Normalise each row to a distribution, ``rows`` of them per block; ``columns`` covers a whole row."""
    block = ct.bid(0)
    tile = ct.load(scores, index=(block, 0), shape=(rows, columns), padding_mode=ct.PaddingMode.NEG_INF)
    powers = ct.exp(tile - ct.max(tile, axis=1, keepdims=True))
    ct.store(out, index=(block, 0), tile=powers / ct.sum(powers, axis=1, keepdims=True))


@ct.kernel
def gemm(left, right, out, height: Size, width: Size, depth: Size):
    """Multiply two matrices, a tile of ``height`` by ``width`` per block, in steps of ``depth``."""
    row, column = ct.bid(0), ct.bid(1)
    total = ct.full((height, width), 0, dtype=ct.float32)
    for step in range(ct.cdiv(left.shape[1], depth)):
        a = ct.load(left, index=(row, step), shape=(height, depth), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(right, index=(step, column), shape=(depth, width), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(a, b, total)
    ct.store(out, index=(row, column), tile=ct.astype(total, out.dtype))


def array(dtype: ct.DType, dimensions: int) -> ArrayConstraint:
    """Describe an array as tensor libraries make them: contiguous rows, 16-byte aligned, no aliases."""
    return ArrayConstraint(
        dtype,
        dimensions,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None,) * (dimensions - 1) + (1,),
        base_addr_divisible_by=16,
    )


def signatures() -> dict[str, KernelSignature]:
    """Return for each kernel the types and tile sizes to compile it for."""
    convention = CallingConvention.cutile_python_v1()
    parameters = {
        "vector_add": [*[array(ct.float32, 1)] * 3, 1024],
        "softmax": [*[array(ct.float32, 2)] * 2, 4, 1024],
        "gemm": [*[array(ct.float16, 2)] * 3, 128, 128, 64],
    }
    return {name: KernelSignature(these, calling_convention=convention) for name, these in parameters.items()}
