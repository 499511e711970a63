// A row of `dim` values is worked on by a group of 1, 2, 4, ... 32 neighbouring lanes of a warp. Each lane holds
// VALUES of it, in vectors of WIDTH: lane l has values (c * lanes + l) * WIDTH + 0 .. WIDTH - 1 of each chunk c.
// WIDTH divides dim, and lanes * VALUES >= dim, so dim may be 1 .. 128.

constexpr int VALUES = 4;
constexpr unsigned ALL_LANES = 0xffffffffu;

template <int WIDTH>
struct alignas(4 * WIDTH) Vector {
    float at[WIDTH];
};

// The first value of chunk c that this lane holds; the chunk is empty where it is dim or more.
template <int WIDTH>
__device__ __forceinline__ int first_value(int c, int lane, int lanes) {
    return (c * lanes + lane) * WIDTH;
}

// Read this lane's values of a row; 0 beyond its end.
template <int WIDTH>
__device__ __forceinline__ void load(float (&values)[VALUES], const float* row, int lane, int lanes, int dim) {
#pragma unroll
    for (int c = 0; c < VALUES / WIDTH; c++) {
        const int k = first_value<WIDTH>(c, lane, lanes);
        Vector<WIDTH> vector = {};
        if (k < dim) vector = *reinterpret_cast<const Vector<WIDTH>*>(row + k);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values[c * WIDTH + i] = vector.at[i];
    }
}

template <int WIDTH>
__device__ __forceinline__ void store(const float (&values)[VALUES], float* row, int lane, int lanes, int dim) {
#pragma unroll
    for (int c = 0; c < VALUES / WIDTH; c++) {
        const int k = first_value<WIDTH>(c, lane, lanes);
        Vector<WIDTH> vector;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) vector.at[i] = values[c * WIDTH + i];
        if (k < dim) *reinterpret_cast<Vector<WIDTH>*>(row + k) = vector;
    }
}

// The sum over a group, the same bits in each of its lanes. All 32 lanes of the warp take part.
__device__ __forceinline__ float group_sum(float value, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}
