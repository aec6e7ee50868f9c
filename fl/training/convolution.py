"""5x5 convolutions on a CPU with a sixth of the multiplications (Winograd 1980; Lavin and Gray 2016).

An image is cut into tiles of 8x8 pixels that overlap by four. In each tile, a convolution is the polynomial product
F(4x4, 5x5) of Toom and Cook at the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity: three linear maps with 64 matrix
products between them, Y = A' [(G w G') * (B' x B)] A, where ' is the transpose. 16 outputs need 64 multiplications
instead of 400. The backward pass is the same three maps, transposed. torch does the matrix products, and the kernels
here do the maps, eight channels at a time.

Results differ from torch's by rounding: relative to the exact result, the error is two to six times that of torch's
own float32 convolution (`tests/fl/test_convolution.py` compares both with float64). A value that is not finite makes
all outputs of its tiles NaN. The kernels are compiled once per process, in about three seconds, and are not kept on
disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

KERNEL: Final = 5
STEP: Final = 4  # outputs of a tile, in each direction
TILE: Final = STEP + KERNEL - 1
LANES: Final = 8  # channels that the kernels treat at once
ROWS: Final = 128  # tiles of one matrix product: few enough for its matrices to stay in the cache
POINTS: Final = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))  # and infinity
LARGEST: Final = 256 * 256  # pixels of an image; the matrices of one image are in memory at once
ONES: Final = TILE + 1  # the matrix product at the point (1, 1), which adds equally to all outputs of a tile

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


def suits(layer: nn.Module) -> bool:
    """Whether `accelerate` changes this layer: an ordinary 5x5 convolution whose channels fill the lanes.

    The first layer of a network, with three channels, is faster in torch.
    """
    return (
        type(layer) is nn.Conv2d
        and layer.kernel_size == (KERNEL, KERNEL)
        and layer.stride == layer.dilation == (1, 1)
        and layer.padding in ((KERNEL // 2, KERNEL // 2), "same")
        and layer.padding_mode == "zeros"
        and layer.groups == 1
        and layer.in_channels % LANES == layer.out_channels % LANES == 0
    )


def accelerate(module: nn.Module) -> None:
    """Let the layers of a module that suit compute their convolutions here, if their inputs are float32 on a CPU."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and suits(layer):
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]


def _forward(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    return convolve(inputs, layer.weight, layer.bias) if _fits(layer, inputs) else nn.Conv2d.forward(layer, inputs)


def _fits(layer: nn.Conv2d, inputs: Tensor) -> bool:
    if inputs.dim() != 4 or not 0 < inputs[:, 0].numel() <= LARGEST * len(inputs) or torch.is_autocast_enabled("cpu"):
        return False
    return inputs.dtype == layer.weight.dtype == torch.float32 and inputs.device.type == "cpu"


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

    def padded(self) -> tuple[int, int, int, int]:
        """The shape of the inputs of all tiles, channels last."""
        return self.images, STEP * self.down + KERNEL - 1, STEP * self.across + KERNEL - 1, self.channels


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernels, filters = _kernels(), _filters()
        images, channels, height, width = inputs.shape
        layout = _Layout(images, channels, len(weight), -(-height // STEP), -(-width // STEP))
        _, tall, wide, _ = layout.padded()
        border = KERNEL // 2
        sides = (0, 0, border, wide - width - border, border, tall - height - border)
        source = pad(inputs.permute(0, 2, 3, 1), sides).contiguous()
        spectrum = (filters @ weight.permute(2, 3, 1, 0).reshape(KERNEL**2, -1)).view(TILE**2, channels, layout.outputs)
        out = torch.empty(images, STEP * layout.down, STEP * layout.across, layout.outputs)
        product, tile_inputs = layout.matrices(layout.outputs), layout.matrices(layout.channels)
        for part, tiles in layout.parts():
            kernels.take(source[part].numpy(), tile_inputs.numpy())
            torch.bmm(tile_inputs[:, :tiles], spectrum, out=product[:, :tiles])
            product[ONES, :tiles] += bias
            kernels.put(product.numpy(), out[part].numpy())
        ctx.layout, ctx.shape = layout, inputs.shape
        ctx.save_for_backward(source, spectrum)  # reading the tiles again costs less than keeping their maps
        return out[:, :height, :width].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        kernels, filters, layout = _kernels(), _filters(), ctx.layout
        inputs, spectrum = ctx.saved_tensors
        _, channels, height, width = ctx.shape
        sides = (0, 0, 0, STEP * layout.across - width, 0, STEP * layout.down - height)
        source = pad(gradient.permute(0, 2, 3, 1), sides).contiguous()
        of_spectrum, of_bias = torch.zeros_like(spectrum), torch.zeros(layout.outputs)
        of_source = torch.zeros(layout.padded()) if ctx.needs_input_grad[0] else None
        product, tile_inputs = layout.matrices(layout.outputs), layout.matrices(layout.channels)
        for part, tiles in layout.parts():
            kernels.take(inputs[part].numpy(), tile_inputs.numpy())
            kernels.take_back(source[part].numpy(), product.numpy())
            of_bias += product[ONES, :tiles].sum(0)
            of_spectrum.baddbmm_(tile_inputs[:, :tiles].transpose(1, 2), product[:, :tiles])
            if of_source is not None:
                torch.bmm(product[:, :tiles], spectrum.transpose(1, 2), out=tile_inputs[:, :tiles])
                kernels.put_back(tile_inputs.numpy(), of_source[part].numpy())
        of_weight = filters.T @ of_spectrum.view(TILE**2, -1)
        of_weight = of_weight.view(KERNEL, KERNEL, channels, layout.outputs).permute(3, 2, 0, 1)
        of_inputs = None
        if of_source is not None:
            border = KERNEL // 2
            of_inputs = of_source[:, border : border + height, border : border + width].permute(0, 3, 1, 2)
        return of_inputs, of_weight, of_bias


@cache
def _filters() -> Tensor:
    """G for both directions: 64 x 25."""
    _, g, _ = maps()
    return torch.from_numpy(np.kron(g, g).astype(np.float32))


class _Kernels(NamedTuple):
    """The maps in two directions, for all tiles of some images; matrices are (64, tiles, channels)."""

    take: Callable[..., None]  # B' of the inputs, into matrices
    put: Callable[..., None]  # A' of matrices, into the outputs
    take_back: Callable[..., None]  # A of the outputs' gradient, into matrices
    put_back: Callable[..., None]  # B of matrices, added to the inputs' gradient


@cache
def _kernels() -> _Kernels:
    """Compile the maps. numba is imported here, because few trainings need it in their workers."""
    from numba import njit

    a, _, b = maps()
    images, matrices = "float32[:, :, :, ::1]", "float32[:, :, ::1]"
    onto, out_of = f"void({images}, {matrices})", f"void({matrices}, {images})"

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

    def gather(images: Any, matrices: Any) -> None:
        count, height, width, channels = images.shape
        down, across = (height - size) // STEP + 1, (width - size) // STEP + 1
        pixel, line, matrix = channels * 4, width * channels * 4, matrices.strides[0]
        between = np.empty(TILE * size * channels, np.float32)
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

    def scatter(matrices: Any, images: Any) -> None:
        count, height, width, channels = images.shape
        down, across = (height - size) // STEP + 1, (width - size) // STEP + 1
        pixel, line, matrix = channels * 4, width * channels * 4, matrices.strides[0]
        between = np.empty(TILE * size * channels, np.float32)
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
