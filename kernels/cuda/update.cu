// L2, CowClip and Adam in the form of Keras, in one pass over (w, m, v):
//
//   g = sum of the row's gradients + decay * w                                         decay = 2 * l2
//   g = g * t / ||g||  if ||g|| > t,  t = max(||w||, floor) * count * ratio            floor = ratio * sqrt(dim) * zeta
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;  w = w - rate * m / (sqrt(v) + eps)
//
// A row within its threshold is left as it is, NaN norms compare as within, an m or v below the smallest normal
// number becomes 0, and NaN stays NaN: no fminf or fmaxf here, which would drop it.

constexpr int UPDATE_THREADS = 256;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

struct Table {
    float* weights;     // [num_rows, dim]
    float* exp_avg;     // [num_rows, dim]
    float* exp_avg_sq;  // [num_rows, dim]
};

struct Gradients {
    const float* sums;  // [entries, dim]
    const int* counts;  // [entries], or null: 1
};

struct Adam {
    float rate, decay, beta1, beta2, rest1, rest2, eps;  // rest1 = 1 - beta1, rounded once; rest2 likewise
};

struct Clip {
    int on;
    float ratio, floor;
};

__device__ __forceinline__ float flushed(float value) { return fabsf(value) < SMALLEST_NORMAL ? 0.0f : value; }

__device__ __forceinline__ void adam(float& w, float& m, float& v, float g, const Adam& rule) {
    m = flushed(rule.beta1 * m + rule.rest1 * g);
    v = flushed(rule.beta2 * v + rule.rest2 * g * g);
    w -= rule.rate * m / (sqrtf(v) + rule.eps);
}

// Update a row by the lanes of its group; gives whether it was clipped. A row without an entry (-1) has no gradient
// in the batch. A group without a row (-1) takes part as well, for its warp's sums.
template <int WIDTH>
__device__ __forceinline__ bool update_row(
    const Table& table, const Gradients& gradients, long long row, long long entry, const Adam& rule, const Clip& clip,
    int lane, int lanes, int dim
) {
    float w[VALUES] = {}, m[VALUES] = {}, v[VALUES] = {}, g[VALUES] = {};
    if (row >= 0) {  // before the entry is looked at, which may still be on its way
        load<WIDTH>(w, table.weights + row * dim, lane, lanes, dim);
        load<WIDTH>(m, table.exp_avg + row * dim, lane, lanes, dim);
        load<WIDTH>(v, table.exp_avg_sq + row * dim, lane, lanes, dim);
    }
    int count = 1;
    if (entry >= 0) {
        load<WIDTH>(g, gradients.sums + entry * dim, lane, lanes, dim);
        if (gradients.counts) count = max(gradients.counts[entry], 1);
    }
    if (rule.decay != 0) {  // not 0 * w, which is NaN for an infinite w
#pragma unroll
        for (int i = 0; i < VALUES; i++) g[i] += rule.decay * w[i];
    }
    bool clipped = false;
    if (clip.on) {
        float weight_square = 0, gradient_square = 0;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            weight_square += w[i] * w[i];
            gradient_square += g[i] * g[i];
        }
        const float weight_norm = sqrtf(group_sum(weight_square, lanes));
        const float norm = sqrtf(group_sum(gradient_square, lanes));
        const float threshold = (weight_norm < clip.floor ? clip.floor : weight_norm) * (float)count * clip.ratio;
        clipped = norm > threshold;
        if (clipped) {
            const float scale = threshold / norm;
#pragma unroll
            for (int i = 0; i < VALUES; i++) g[i] *= scale;
        }
    }
    if (row < 0) return false;
#pragma unroll
    for (int i = 0; i < VALUES; i++) adam(w[i], m[i], v[i], g[i], rule);
    store<WIDTH>(w, table.weights + row * dim, lane, lanes, dim);
    store<WIDTH>(m, table.exp_avg + row * dim, lane, lanes, dim);
    store<WIDTH>(v, table.exp_avg_sq + row * dim, lane, lanes, dim);
    return clipped;
}

__device__ __forceinline__ void update_row_of_width(
    const Table& table, const Gradients& gradients, long long row, long long entry, const Adam& rule, const Clip& clip,
    int lanes, int dim, int width, unsigned long long* clipped
) {
    const int lane = threadIdx.x % lanes;
    bool was_clipped;
    if (width == 4) was_clipped = update_row<4>(table, gradients, row, entry, rule, clip, lane, lanes, dim);
    else if (width == 2) was_clipped = update_row<2>(table, gradients, row, entry, rule, clip, lane, lanes, dim);
    else was_clipped = update_row<1>(table, gradients, row, entry, rule, clip, lane, lanes, dim);
    if (clip.on) {
        const int rows_clipped = __syncthreads_count(was_clipped && lane == 0);
        if (threadIdx.x == 0 && rows_clipped > 0) atomicAdd(clipped, (unsigned long long)rows_clipped);
    }
}

// Every row of the table, a group of lanes each.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) update_table(
    float* weights, float* exp_avg, float* exp_avg_sq,  // [num_rows, dim]
    const float* sums,                                  // [entries, dim]
    const int* counts,                                  // [entries], or null: 1
    const int* slots,                                   // [num_rows], or null: entry i is row i
    long long num_rows, int dim, int lanes, int width,
    const float* rate,                                  // one value
    float decay, float beta1, float beta2, float rest1, float rest2, float eps,
    int clip_on, float ratio, float floor,
    unsigned long long* clipped                         // one value; the clipped rows are added to it
) {
    const long long item = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    const long long row = item < num_rows ? item : -1;
    const long long entry = row < 0 || !slots ? row : slots[row];
    update_row_of_width(
        {weights, exp_avg, exp_avg_sq}, {sums, counts}, row, entry,
        {*rate, decay, beta1, beta2, rest1, rest2, eps}, {clip_on, ratio, floor}, lanes, dim, width, clipped
    );
}

// The rows that have an entry, a group of lanes each.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) update_entries(
    float* weights, float* exp_avg, float* exp_avg_sq,  // [num_rows, dim]
    const float* sums,                                  // [entries, dim]
    const int* counts,                                  // [entries]; 0 in unused ones
    const long long* rows,                              // [entries]
    long long entries, int dim, int lanes, int width,
    const float* rate,                                  // one value
    float decay, float beta1, float beta2, float rest1, float rest2, float eps,
    int clip_on, float ratio, float floor,
    unsigned long long* clipped                         // one value; the clipped rows are added to it
) {
    const long long item = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    const long long entry = item < entries && counts[item] > 0 ? item : -1;
    const long long row = entry < 0 ? -1 : rows[entry];
    update_row_of_width(
        {weights, exp_avg, exp_avg_sq}, {sums, counts}, row, entry,
        {*rate, decay, beta1, beta2, rest1, rest2, eps}, {clip_on, ratio, floor}, lanes, dim, width, clipped
    );
}

// Values of any shape, without a clip: dense weights.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) update_values(
    float* weights, float* exp_avg, float* exp_avg_sq, const float* grads, long long total,
    const float* rate,  // one value
    float decay, float beta1, float beta2, float rest1, float rest2, float eps
) {
    constexpr int AHEAD = 4;
    const Adam rule = {*rate, decay, beta1, beta2, rest1, rest2, eps};
    const long long first = (long long)blockIdx.x * UPDATE_THREADS * AHEAD + threadIdx.x;
    float w[AHEAD] = {}, m[AHEAD] = {}, v[AHEAD] = {}, g[AHEAD] = {};
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const long long i = first + u * UPDATE_THREADS;
        if (i < total) {
            w[u] = weights[i];
            m[u] = exp_avg[i];
            v[u] = exp_avg_sq[i];
            g[u] = grads[i];
        }
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const long long i = first + u * UPDATE_THREADS;
        if (i < total) {
            if (rule.decay != 0) g[u] += rule.decay * w[u];
            adam(w[u], m[u], v[u], g[u], rule);
            weights[i] = w[u];
            exp_avg[i] = m[u];
            exp_avg_sq[i] = v[u];
        }
    }
}
