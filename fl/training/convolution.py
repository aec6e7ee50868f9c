"""5x5 convolutions on a CPU with a sixth of the multiplications (Winograd 1980; Lavin and Gray 2016).

An image is cut into tiles of 8x8 pixels that overlap by four. In each tile, a convolution is the polynomial product
F(4x4, 5x5) of Toom and Cook at the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity: three linear maps with 64 matrix
products between them, Y = A' [(G w G') * (B' x B)] A, where ' is the transpose. 16 outputs need 64 multiplications
instead of 400. The backward pass is the same three maps, transposed. torch does the matrix products, and the kernels
here do the maps, eight channels at a time.

Results differ from torch's by rounding. The error is relative to the largest value of a tile, so small results beside
large values lose digits. In the second layer of the paper's network, all results and gradients are within 1e-5 of the
exact ones, relative to the largest of them (`tests/fl/test_convolution.py`). Values that are not finite, or above 1e36,
can make any output of their tiles NaN.

Layers with fewer than 32 channels, small batches, and processors other than x86 with AVX2 and FMA get torch's
convolution, which is faster there or was not compared. The kernels are compiled once per process, in about three
seconds, and are not kept on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import pad

KERNEL: Final = 5
STEP: Final = 4  # outputs of a tile, in each direction
TILE: Final = STEP + KERNEL - 1
LANES: Final = 8  # channels that the kernels treat at once
LEAST: Final = 32  # channels, of the images and of the results
TILES: Final = 64  # of one call, at least
ROWS: Final = 128  # tiles of one matrix product: few enough for its matrices to stay in the cache
POINTS: Final = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))  # and infinity
LARGEST: Final = 1 << 28  # bytes of the matrices of one image, which are in memory at once
ONES: Final = TILE + 1  # the matrix product at the point (1, 1), which adds equally to all outputs of a tile

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]


def maps() -> tuple[Float64s, Float64s, Float64s]:
    """A' (4x8), G (8x5) and B' (8x8): Toom and Cook's maps for one direction.

    >>> a, g, b = maps()
    >>> signal, weights = np.arange(8.0), np.array([1.0, 0.0, 2.0, 0.0, 3.0])
    >>> np.allclose(a @ ((g @ weights) * (b @ signal)), np.correlate(signal, weights, "valid"))
    True
    """
    a, g, b = np.zeros((STEP, TILE)), np.zeros((TILE, KERNEL)), np.zeros((TILE, TILE))
    for row, point in enumerate(POINTS):
        others = [other for other in POINTS if other != point]
        scale = math.prod(point - other for other in others)
        a[:, row] = [point**i for i in range(STEP)]
        g[row] = [point**k / scale for k in range(KERNEL)]
        b[row, :-1] = _polynomial(others)
    a[-1, -1] = g[-1, -1] = 1
    b[-1] = _polynomial(POINTS)
    return a, g, b


def _polynomial(roots: tuple[Fraction, ...] | list[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (x - root), the constant first."""
    found = [Fraction(1)]
    for root in roots:
        found = [up - root * same for up, same in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


class _Winograd(nn.Conv2d):
    """A layer that `accelerate` has changed."""

    def forward(self, input: Tensor) -> Tensor:
        if _fits(input, self.weight, self.bias):
            return convolve(input, self.weight, self.bias)
        return super().forward(input)

    def _get_name(self) -> str:  # in the representation of the module, which is part of a task's fingerprint
        return "Conv2d"


def suits(layer: nn.Module) -> bool:
    """Whether `accelerate` changes this layer: an ordinary 5x5 convolution whose channels fill the lanes."""
    return (
        type(layer) is nn.Conv2d
        and layer.kernel_size == (KERNEL, KERNEL)
        and layer.stride == layer.dilation == (1, 1)
        and layer.padding in ((KERNEL // 2, KERNEL // 2), "same")
        and layer.padding_mode == "zeros"
        and layer.groups == 1
        and layer.in_channels % LANES == layer.out_channels % LANES == 0
        and min(layer.in_channels, layer.out_channels) >= LEAST
    )


def accelerate(module: nn.Module) -> None:
    """Let the layers of a module that suit compute their convolutions here, where that is possible and pays."""
    layers = [layer for layer in module.modules() if suits(layer)]
    if layers and _fast_here():
        for layer in layers:
            layer.__class__ = _Winograd


@cache
def _fast_here() -> bool:
    """Whether numba compiles for a processor on which the kernels were compared with torch."""
    import numba
    from numba.core.registry import cpu_target

    _triple, _processor, features = cpu_target.target_context.codegen().magic_tuple()
    disabled = bool(numba.config.DISABLE_JIT)  # type: ignore[attr-defined]
    return not disabled and {"+avx2", "+fma"} <= set(features.split(","))


def _fits(images: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are ordinary float32 tensors of a CPU, of a size that pays, in an ordinary computation."""
    tensors = (images, weight) if bias is None else (images, weight, bias)
    for tensor in tensors:
        ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if not ordinary or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return False
    if images.dim() != 4 or images.shape[1] != weight.shape[1] or 0 in images.shape:
        return False
    layout = _layout(images, weight)
    return layout.pays(*images.shape[2:]) and not _transformed(tensors)


def _transformed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether torch compiles, lowers the precision, or derives in a way other than backward()."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(unpack_dual(tensor).tangent is not None for tensor in tensors)  # type: ignore[no-untyped-call]
    )


def convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.conv2d(inputs, weight, bias, padding=2)` for 5x5 weights, with its gradients.

    >>> images, weight = torch.randn(2, 8, 9, 6), torch.randn(16, 8, 5, 5)
    >>> torch.allclose(convolve(images, weight), torch.conv2d(images, weight, padding=2), atol=1e-3)
    True
    """
    outputs, channels, *size = weight.shape
    fits = inputs.dim() == 4 and inputs.shape[1] == channels and size == [KERNEL, KERNEL]
    if not fits or outputs % LANES or channels % LANES:
        got = f"{tuple(inputs.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"expected images (N, C, H, W) and weights (K, C, 5, 5), C and K multiples of 8, got {got}")
    if bias is None:
        bias = weight.new_zeros(outputs)
    out: Tensor = _Convolution.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Layout(NamedTuple):
    """How the images of one call are cut into tiles, and the tiles into matrix products."""

    images: int
    channels: int
    outputs: int
    down: int  # tiles of an image, in each direction
    across: int

    @property
    def at_once(self) -> int:
        """Images of one matrix product."""
        return min(self.images, max(1, ROWS // (self.down * self.across)))

    def parts(self) -> list[tuple[slice, int]]:
        """The images of each matrix product, and the number of their tiles."""
        starts = range(0, self.images, self.at_once)
        slices = [slice(start, min(start + self.at_once, self.images)) for start in starts]
        return [(part, (part.stop - part.start) * self.down * self.across) for part in slices]

    def matrices(self, columns: int) -> Tensor:
        """Memory for the 64 matrices of one product, for at most `at_once` images."""
        return torch.empty(TILE * TILE, self.at_once * self.down * self.across, columns)

    def between(self) -> Float32s:
        """Memory for one tile between its two directions."""
        return np.empty(TILE * TILE * max(self.channels, self.outputs), np.float32)

    def padded(self) -> tuple[int, int, int, int]:
        """The shape of the inputs of all tiles, channels last."""
        return self.images, STEP * self.down + KERNEL - 1, STEP * self.across + KERNEL - 1, self.channels

    def pays(self, height: int, width: int) -> bool:
        """Whether there are enough tiles, three quarters full, and the matrices of an image fit into memory."""
        tiles = self.down * self.across
        bytes_of_one = 4 * TILE * TILE * tiles * (self.channels + self.outputs)
        full = 4 * height * width >= 3 * STEP * STEP * tiles
        return self.images * tiles >= TILES and full and bytes_of_one <= LARGEST


def _layout(images: Tensor, weight: Tensor) -> _Layout:
    count, channels, height, width = images.shape
    return _Layout(count, channels, len(weight), -(-height // STEP), -(-width // STEP))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernels, filters, layout = _kernels(), _filters(), _layout(inputs, weight)
        images, channels, height, width = inputs.shape
        _, tall, wide, _ = layout.padded()
        border = KERNEL // 2
        sides = (0, 0, border, wide - width - border, border, tall - height - border)
        source = pad(inputs.permute(0, 2, 3, 1), sides).contiguous()
        spectrum = (filters @ weight.permute(2, 3, 1, 0).reshape(KERNEL**2, -1)).view(TILE**2, channels, layout.outputs)
        whole = (images, layout.outputs, STEP * layout.down, STEP * layout.across)
        out = torch.empty(whole, memory_format=torch.channels_last)
        rows = out.permute(0, 2, 3, 1)
        product, tile_inputs = layout.matrices(layout.outputs), layout.matrices(layout.channels)
        between = layout.between()
        for part, tiles in layout.parts():
            kernels.take(source[part].numpy(), tile_inputs.numpy(), between)
            torch.bmm(tile_inputs[:, :tiles], spectrum, out=product[:, :tiles])
            product[ONES, :tiles] += bias
            kernels.put(product.numpy(), rows[part].numpy(), between)
        ctx.save_for_backward(inputs, weight, source, spectrum)  # to map tiles again costs less than to keep the maps
        if (height, width) == whole[2:]:
            return out
        return out[:, :, :height, :width].clone(memory_format=torch.channels_last)  # torch wants no view here

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, source, spectrum = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient shall have derivatives: torch's own has
            ones, border = [1, 1], [KERNEL // 2] * 2
            fixed = ([len(weight)], ones, border, ones, False, [0, 0], 1, list(ctx.needs_input_grad))
            gradients: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(gradient, inputs, weight, *fixed)
            return gradients
        kernels, layout = _kernels(), _layout(inputs, weight)
        height, width = inputs.shape[2:]
        sides = (0, 0, 0, STEP * layout.across - width, 0, STEP * layout.down - height)
        source_back = pad(gradient.permute(0, 2, 3, 1), sides).contiguous()
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        padded = torch.zeros(layout.padded()) if of_inputs else None
        of_spectrum = torch.zeros_like(spectrum) if of_weight else None
        total = torch.zeros(layout.outputs) if of_bias else None
        product, tile_inputs = layout.matrices(layout.outputs), layout.matrices(layout.channels)
        between = layout.between()
        for part, tiles in layout.parts():
            kernels.take_back(source_back[part].numpy(), product.numpy(), between)
            if total is not None:
                total += product[ONES, :tiles].sum(0)
            if of_spectrum is not None:
                kernels.take(source[part].numpy(), tile_inputs.numpy(), between)
                of_spectrum.baddbmm_(tile_inputs[:, :tiles].transpose(1, 2), product[:, :tiles])
            if padded is not None:
                torch.bmm(product[:, :tiles], spectrum.transpose(1, 2), out=tile_inputs[:, :tiles])
                kernels.put_back(tile_inputs.numpy(), padded[part].numpy(), between)
        return _cropped(padded, height, width), _weights(of_spectrum), total


def _cropped(padded: Tensor | None, height: int, width: int) -> Tensor | None:
    if padded is None:
        return None
    border = KERNEL // 2
    return padded[:, border : border + height, border : border + width].permute(0, 3, 1, 2)


def _weights(spectrum: Tensor | None) -> Tensor | None:
    """G', for the gradient of the weights."""
    if spectrum is None:
        return None
    _, channels, outputs = spectrum.shape
    weights = _filters().T @ spectrum.view(TILE**2, -1)
    return weights.view(KERNEL, KERNEL, channels, outputs).permute(3, 2, 0, 1)


@cache
def _filters() -> Tensor:
    """G for both directions: 64 x 25."""
    _, g, _ = maps()
    return torch.from_numpy(np.kron(g, g).astype(np.float32))


class _Kernels(NamedTuple):
    """The maps in two directions, for all tiles of some images; matrices are (64, tiles, channels).

    The last argument is memory for one tile, which the caller keeps. A kernel must not allocate it: numba frees an
    array after its last use, and the loops use only the address.
    """

    take: Callable[..., None]  # B' of the inputs, into matrices
    put: Callable[..., None]  # A' of matrices, into the outputs
    take_back: Callable[..., None]  # A of the outputs' gradient, into matrices
    put_back: Callable[..., None]  # B of matrices, added to the inputs' gradient


@cache
def _kernels() -> _Kernels:
    """Compile the maps. numba is imported here, because few trainings need it in their workers."""
    from numba import njit

    a, _, b = maps()
    images, matrices, between = "float32[:, :, :, ::1]", "float32[:, :, ::1]", "float32[::1]"
    onto, out_of = f"void({images}, {matrices}, {between})", f"void({matrices}, {images}, {between})"

    def gathering(matrix: Float64s, size: int) -> Callable[..., None]:
        return njit(onto, nogil=True)(_gathering(_combination(matrix), size))

    def scattering(matrix: Float64s, size: int, *, add: bool) -> Callable[..., None]:
        first, last = _combination(matrix), _combination(matrix, add=add)
        return njit(out_of, nogil=True)(_scattering(first, last, size))

    return _Kernels(
        take=gathering(b, TILE),
        put=scattering(a, STEP, add=False),
        take_back=gathering(a.T, STEP),
        put_back=scattering(b.T, TILE, add=True),
    )


def _combination(matrix: Float64s, *, add: bool = False) -> Any:
    """Code that reads one vector of eight channels per column of a matrix, and writes or adds one per row.

    It takes the addresses of the first vector to write and to read, each with the distance to the next, in bytes.
    """
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    vector, integer = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, target_step, source, source_step = arguments

        def place(base: Any, step: Any, k: int) -> Any:
            address = builder.add(base, builder.mul(step, ir.Constant(integer, k)))
            return builder.inttoptr(address, vector.as_pointer())

        name, kind = "llvm.fma.v8f32", ir.FunctionType(vector, [vector] * 3)
        fma = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        read = [builder.load(place(source, source_step, k), align=4) for k in range(matrix.shape[1])]
        for i, row in enumerate(matrix):
            where = place(target, target_step, i)
            total = builder.load(where, align=4) if add else ir.Constant(vector, [0.0] * LANES)
            for factor, value in zip(row, read, strict=True):
                if factor:
                    total = builder.call(fma, [value, ir.Constant(vector, [float(factor)] * LANES), total])
            builder.store(total, where, align=4)
        return context.get_dummy_value()

    def typed(_context: Any, target: Any, target_step: Any, source: Any, source_step: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return intrinsic(typed)


def _gathering(combine: Any, size: int) -> Callable[..., None]:
    """From tiles of size x size pixels to 64 matrices: first down, then across."""

    def gather(images: Any, matrices: Any, between: Any) -> None:
        count, height, width, channels = images.shape
        down, across = (height - size) // STEP + 1, (width - size) // STEP + 1
        pixel, line, matrix = channels * 4, width * channels * 4, matrices.strides[0]
        middle, tile = between.ctypes.data, matrices.ctypes.data
        for image in range(count):
            for y in range(down):
                for x in range(across):
                    corner = images.ctypes.data + ((image * height + STEP * y) * width + STEP * x) * pixel
                    for lanes in range(0, pixel, 4 * LANES):
                        for j in range(size):
                            at = j * pixel + lanes
                            combine(middle + at, size * pixel, corner + at, line)
                        for i in range(TILE):
                            combine(tile + i * TILE * matrix + lanes, matrix, middle + i * size * pixel + lanes, pixel)
                    tile += pixel

    return gather


def _scattering(combine: Any, finish: Any, size: int) -> Callable[..., None]:
    """From 64 matrices to tiles of size x size pixels: first across, then down."""

    def scatter(matrices: Any, images: Any, between: Any) -> None:
        count, height, width, channels = images.shape
        down, across = (height - size) // STEP + 1, (width - size) // STEP + 1
        pixel, line, matrix = channels * 4, width * channels * 4, matrices.strides[0]
        middle, tile = between.ctypes.data, matrices.ctypes.data
        for image in range(count):
            for y in range(down):
                for x in range(across):
                    corner = images.ctypes.data + ((image * height + STEP * y) * width + STEP * x) * pixel
                    for lanes in range(0, pixel, 4 * LANES):
                        for i in range(TILE):
                            combine(middle + i * size * pixel + lanes, pixel, tile + i * TILE * matrix + lanes, matrix)
                        for j in range(size):
                            at = j * pixel + lanes
                            finish(corner + at, line, middle + at, size * pixel)
                    tile += pixel

    return scatter
