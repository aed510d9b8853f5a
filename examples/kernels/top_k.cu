// The best tokens of a row: CUB radix sorts of scores with their indices, for several widths of a vocabulary.
// Each sort is unrolled in full, which keeps a compiler busy for seconds.

#include <cub/block/block_radix_sort.cuh>

template <int threads, int items>
__device__ void best(const float *scores, int *tokens, int columns, int k) {
  using Sort = cub::BlockRadixSort<float, threads, items, int>;
  __shared__ typename Sort::TempStorage storage;
  float keys[items];
  int values[items];
  const float *row = scores + static_cast<long long>(blockIdx.x) * columns;
#pragma unroll
  for (int item = 0; item < items; ++item) {
    const int column = threadIdx.x * items + item;
    keys[item] = column < columns ? row[column] : -1e38f;
    values[item] = column;
  }
  Sort(storage).SortDescending(keys, values);
#pragma unroll
  for (int item = 0; item < items; ++item) {
    const int rank = threadIdx.x * items + item;
    if (rank < k) tokens[static_cast<long long>(blockIdx.x) * k + rank] = values[item];
  }
}

extern "C" __global__ void __launch_bounds__(128) top_k_512(const float *scores, int *tokens, int columns, int k) {
  best<128, 4>(scores, tokens, columns, k);
}

extern "C" __global__ void __launch_bounds__(256) top_k_4096(const float *scores, int *tokens, int columns, int k) {
  best<256, 16>(scores, tokens, columns, k);
}

extern "C" __global__ void __launch_bounds__(512) top_k_8192(const float *scores, int *tokens, int columns, int k) {
  best<512, 16>(scores, tokens, columns, k);
}
