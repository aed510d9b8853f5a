// Softmax over rows, one block a row: two reductions by CUB, of the largest score and of the sum of the powers.

#include <cub/block/block_reduce.cuh>

constexpr int threads = 256;

struct Largest {
  __device__ float operator()(float left, float right) const { return fmaxf(left, right); }
};

extern "C" __global__ void __launch_bounds__(threads) softmax(const float *scores, float *out, int columns) {
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ float largest, total;
  const float *row = scores + static_cast<long long>(blockIdx.x) * columns;
  float *result = out + static_cast<long long>(blockIdx.x) * columns;

  float own = -1e38f;
  for (int column = threadIdx.x; column < columns; column += threads) own = fmaxf(own, row[column]);
  const float most = Reduce(storage).Reduce(own, Largest{});
  if (threadIdx.x == 0) largest = most;
  __syncthreads();

  float sum = 0;
  for (int column = threadIdx.x; column < columns; column += threads) sum += __expf(row[column] - largest);
  const float all = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) total = all;
  __syncthreads();

  for (int column = threadIdx.x; column < columns; column += threads)
    result[column] = __expf(row[column] - largest) / total;
}
