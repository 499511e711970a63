// The lookup of a batch: out[n] = table[offsets[n % fields] + ids[n]] for occurrence n = b * fields + f, and the
// sum over fields of linear[row] for each b. Row numbers times dim are 64-bit.

constexpr int LOOKUP_THREADS = 256;
constexpr int UNROLL = 4;  // rows on their way at once in a lane: the latency of memory is what it waits for

template <int WIDTH>
__device__ __forceinline__ void gather_group(
    const float* table, const int* ids, const long long* offsets, float* out, int total, int fields, int dim, int lanes
) {
    const int groups = blockDim.x / lanes;
    const int lane = threadIdx.x % lanes;
    const long long first = (long long)blockIdx.x * groups * UNROLL + threadIdx.x / lanes;
    long long rows[UNROLL];
    float values[UNROLL][VALUES];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const long long n = min(first + u * groups, (long long)total - 1);  // beyond the end: the last one again
        rows[u] = offsets[(unsigned)n % (unsigned)fields] + ids[n];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) load<WIDTH>(values[u], table + rows[u] * dim, lane, lanes, dim);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const long long n = first + u * groups;
        if (n < total) store<WIDTH>(values[u], out + n * dim, lane, lanes, dim);
    }
}

extern "C" __global__ void __launch_bounds__(LOOKUP_THREADS) gather_rows(
    const float* table,        // [num_rows, dim]
    const int* ids,            // [total], total = batch * fields
    const long long* offsets,  // [fields]
    float* out,                // [total, dim]
    int total, int fields, int dim, int lanes, int width
) {
    if (width == 4) gather_group<4>(table, ids, offsets, out, total, fields, dim, lanes);
    else if (width == 2) gather_group<2>(table, ids, offsets, out, total, fields, dim, lanes);
    else gather_group<1>(table, ids, offsets, out, total, fields, dim, lanes);
}

// One warp a sample.
extern "C" __global__ void __launch_bounds__(LOOKUP_THREADS) gather_linear(
    const float* linear,       // [num_rows]
    const int* ids,            // [batch, fields]
    const long long* offsets,  // [fields]
    float* out,                // [batch]
    int batch, int fields
) {
    const long long sample = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    float sum = 0;
    if (sample < batch) {
        for (int f = lane; f < fields; f += 32) sum += linear[offsets[f] + ids[sample * fields + f]];
    }
    sum = group_sum(sum, 32);
    if (sample < batch && lane == 0) out[sample] = sum;
}
