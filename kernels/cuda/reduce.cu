// The gradient sums of a batch, per row, in a fixed order and without atomics on floats.
//
// The occurrences of a batch are sorted by row, stably: keys[p] is the row at sorted position p, places[p] the
// occurrence n = b * fields + f there. A run is a stretch of one key; its row's entry is its first position.
//
//   sum_tiles   a block sums a tile of TILE positions: each group of lanes walks its part of the tile; runs that
//               cross parts are put together in shared memory. Of a run that crosses tiles it leaves a partial sum:
//               the tail of the tile where the run starts, the head of each tile that it runs on into.
//   fold_tiles  a block per tile adds, for a run that starts there and leaves, the heads that follow to the tail.
//
// The order of a sum follows from the sorted positions alone, so it is the same on every run.

constexpr int REDUCE_THREADS = 256;
constexpr int TILE = 2048;
constexpr int MAX_PARTIALS = REDUCE_THREADS * (VALUES + 1);  // groups * (dim + 1) is at most this

struct Entries {
    long long* rows;     // [total]
    int* counts;         // [total]
    int* slots;          // [num_rows]
    float* sums;         // [total, dim]
    float* linear_sums;  // [total] or null
};

// Where a value of a tile lies in shared memory: parts start 8, 16, 32, ... values apart, in different banks.
__device__ __forceinline__ int padded(int position) { return position + position / 32; }

// Shared memory of sum_tiles: the tile, and per group the sums of the runs that come in from its left and that go
// out to its right.
struct Tile {
    int* keys;         // [padded(TILE)]
    int* places;       // [padded(TILE)]
    float* heads;      // [groups, dim + 1]: the last column is the linear one
    float* tails;      // [groups, dim + 1]
    int* head_ends;    // [groups]: where the run that came in ends; the start of the part where none came in
    int* tail_starts;  // [groups]: where the run that goes out starts; -1 where none does
};

template <int WIDTH>
__device__ __forceinline__ void write_entry(
    const Entries& entries, long long entry, int row, int count, const float (&sum)[VALUES], float linear, int lane,
    int lanes, int dim
) {
    store<WIDTH>(sum, entries.sums + entry * dim, lane, lanes, dim);
    if (lane == 0) {
        entries.rows[entry] = row;
        entries.counts[entry] = count;
        entries.slots[row] = (int)entry;
        if (entries.linear_sums) entries.linear_sums[entry] = linear;
    }
}

template <int WIDTH>
__device__ __forceinline__ void write_partial(
    float* partial, const float (&sum)[VALUES], float linear, int lane, int lanes, int dim
) {
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int k = first_value<WIDTH>(i / WIDTH, lane, lanes) + i % WIDTH;
        if (k < dim) partial[k] = sum[i];
    }
    if (lane == 0) partial[dim] = linear;
}

template <int WIDTH>
__device__ __forceinline__ void add_partial(
    float (&sum)[VALUES], float& linear, const float* partial, int lane, int lanes, int dim
) {
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int k = first_value<WIDTH>(i / WIDTH, lane, lanes) + i % WIDTH;
        if (k < dim) sum[i] += partial[k];
    }
    linear += partial[dim];
}

// Sum positions begin .. end of the tile: whole runs into their entries, the others into heads and tails.
template <int WIDTH>
__device__ __forceinline__ void sum_part(
    const Tile& tile, const Entries& entries, const float* grads, const float* linear_grads, long long first, int begin,
    int end, bool comes_in, bool goes_out, int fields, int dim, int lane, int lanes, float* head, float* tail,
    int& head_end, int& tail_start
) {
    constexpr int AHEAD = 4;  // gradients on their way at once
    float sum[VALUES] = {};
    float linear = 0;
    int start = begin;
    for (int p = begin; p < end; p += AHEAD) {
        float values[AHEAD][VALUES];
        float linear_values[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (p + u < end) {
                const int place = tile.places[padded(p + u)];
                load<WIDTH>(values[u], grads + (long long)place * dim, lane, lanes, dim);
                linear_values[u] = linear_grads ? linear_grads[(unsigned)place / (unsigned)fields] : 0;
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int q = p + u;
            if (q < end) {
#pragma unroll
                for (int i = 0; i < VALUES; i++) sum[i] += values[u][i];
                linear += linear_values[u];
                const int key = tile.keys[padded(q)];
                if (q + 1 < end ? tile.keys[padded(q + 1)] != key : !goes_out) {  // the run ends here
                    if (start == begin && comes_in) {
                        write_partial<WIDTH>(head, sum, linear, lane, lanes, dim);
                        if (lane == 0) head_end = q + 1;
                    } else {
                        write_entry<WIDTH>(entries, first + start, key, q + 1 - start, sum, linear, lane, lanes, dim);
                    }
                    start = q + 1;
#pragma unroll
                    for (int i = 0; i < VALUES; i++) sum[i] = 0;
                    linear = 0;
                }
            }
        }
    }
    if (start == end) return;
    const bool passes = start == begin && comes_in;  // from the left of the part to its right
    write_partial<WIDTH>(passes ? head : tail, sum, linear, lane, lanes, dim);
    if (lane == 0) (passes ? head_end : tail_start) = passes ? end : start;
}

template <int WIDTH>
__device__ __forceinline__ void sum_tile(
    const Tile& tile, const Entries& entries, const float* grads, const float* linear_grads, long long first, int size,
    bool comes_in, bool goes_out, int fields, int dim, int lanes, float* heads, float* tails, float* linear_heads,
    float* linear_tails, int* head_lengths, int* tail_starts
) {
    const int groups = REDUCE_THREADS / lanes, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const int part = TILE / groups, begin = group * part, end = min(begin + part, size);
    const int columns = dim + 1;
    if (begin < end) {
        const bool joins_left = begin > 0 ? tile.keys[padded(begin - 1)] == tile.keys[padded(begin)] : comes_in;
        const bool joins_right = end < size ? tile.keys[padded(end - 1)] == tile.keys[padded(end)] : goes_out;
        sum_part<WIDTH>(
            tile, entries, grads, linear_grads, first, begin, end, joins_left, joins_right, fields, dim, lane, lanes,
            tile.heads + group * columns, tile.tails + group * columns, tile.head_ends[group], tile.tail_starts[group]
        );
    }
    __syncthreads();

    // The group where a run starts puts it together; group 0 does so for the run that came into the tile too.
    for (int incoming = group == 0 && comes_in ? 1 : 0; incoming >= 0; incoming--) {
        int next = incoming ? 0 : group + 1;  // the group whose head is next
        const int start = incoming ? 0 : tile.tail_starts[group];
        if (start < 0) continue;
        float sum[VALUES] = {};
        float linear = 0;
        if (!incoming) add_partial<WIDTH>(sum, linear, tile.tails + group * columns, lane, lanes, dim);
        int stop = incoming ? 0 : end;
        while (next < groups && tile.head_ends[next] > next * part) {
            add_partial<WIDTH>(sum, linear, tile.heads + next * columns, lane, lanes, dim);
            stop = tile.head_ends[next++];
            if (stop < next * part) break;
        }
        const bool leaves = stop == size && goes_out;
        if (incoming) {
            store<WIDTH>(sum, heads + (long long)blockIdx.x * dim, lane, lanes, dim);
            if (lane == 0) linear_heads[blockIdx.x] = linear;
            if (lane == 0) head_lengths[blockIdx.x] = stop;
        } else if (leaves) {
            store<WIDTH>(sum, tails + (long long)blockIdx.x * dim, lane, lanes, dim);
            if (lane == 0) linear_tails[blockIdx.x] = linear;
            if (lane == 0) tail_starts[blockIdx.x] = (int)first + start;
        } else {
            const int key = tile.keys[padded(start)];
            write_entry<WIDTH>(entries, first + start, key, stop - start, sum, linear, lane, lanes, dim);
        }
    }
}

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) sum_tiles(
    const int* keys,            // [total], ascending
    const long long* places,    // [total]
    const float* grads,         // [total, dim]
    const float* linear_grads,  // [batch] or null
    int total, int fields, int dim, int lanes, int width,
    long long* rows, int* counts,  // counts [total] come in as 0
    int* slots, float* sums, float* linear_sums,
    float* heads,               // [tiles, dim]
    float* tails,               // [tiles, dim]
    float* linear_heads,        // [tiles]
    float* linear_tails,        // [tiles]
    int* head_lengths,          // [tiles]: positions of the run that comes into the tile; 0 where none does
    int* tail_starts            // [tiles]: where the run that leaves the tile starts; -1 where none does
) {
    __shared__ int tile_keys[TILE + TILE / 32];
    __shared__ int tile_places[TILE + TILE / 32];
    __shared__ float part_heads[MAX_PARTIALS];
    __shared__ float part_tails[MAX_PARTIALS];
    __shared__ int part_head_ends[REDUCE_THREADS];
    __shared__ int part_tail_starts[REDUCE_THREADS];
    const long long first = (long long)blockIdx.x * TILE;
    const int size = (int)min((long long)TILE, total - first);
    for (int p = threadIdx.x; p < size; p += REDUCE_THREADS) {
        tile_keys[padded(p)] = keys[first + p];
        tile_places[padded(p)] = (int)places[first + p];
    }
    const int groups = REDUCE_THREADS / lanes;
    if (threadIdx.x < groups) {
        part_head_ends[threadIdx.x] = threadIdx.x * (TILE / groups);
        part_tail_starts[threadIdx.x] = -1;
    }
    if (threadIdx.x == 0) {
        head_lengths[blockIdx.x] = 0;
        tail_starts[blockIdx.x] = -1;
    }
    const bool comes_in = first > 0 && keys[first - 1] == keys[first];
    const bool goes_out = first + size < total && keys[first + size - 1] == keys[first + size];
    __syncthreads();

    const Tile tile = {tile_keys, tile_places, part_heads, part_tails, part_head_ends, part_tail_starts};
    const Entries entries = {rows, counts, slots, sums, linear_sums};
    if (width == 4) {
        sum_tile<4>(
            tile, entries, grads, linear_grads, first, size, comes_in, goes_out, fields, dim, lanes, heads, tails,
            linear_heads, linear_tails, head_lengths, tail_starts
        );
    } else if (width == 2) {
        sum_tile<2>(
            tile, entries, grads, linear_grads, first, size, comes_in, goes_out, fields, dim, lanes, heads, tails,
            linear_heads, linear_tails, head_lengths, tail_starts
        );
    } else {
        sum_tile<1>(
            tile, entries, grads, linear_grads, first, size, comes_in, goes_out, fields, dim, lanes, heads, tails,
            linear_heads, linear_tails, head_lengths, tail_starts
        );
    }
}

// A block per tile, for the run that starts in it and leaves it: columns are independent, and the heads of a column
// are shared out to REDUCE_THREADS / columns threads, so that a run over all tiles is not one thread's work.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) fold_tiles(
    const int* keys, const float* heads, const float* tails, const float* linear_heads, const float* linear_tails,
    const int* head_lengths, const int* tail_starts, int total, int tiles, int dim,
    long long* rows, int* counts, int* slots, float* sums, float* linear_sums
) {
    __shared__ int last;  // the first tile that the run does not fill
    __shared__ float partials[REDUCE_THREADS];
    const int start = tail_starts[blockIdx.x];
    if (start < 0) return;  // the whole block
    if (threadIdx.x == 0) last = tiles;
    __syncthreads();
    for (int next = blockIdx.x + 1;; next += REDUCE_THREADS) {
        const int t = next + threadIdx.x;
        const bool stops = t >= tiles || head_lengths[t] < TILE;
        if (stops && t < tiles) atomicMin(&last, t);
        if (__syncthreads_or(stops)) break;
    }
    const int end = last < tiles ? last * TILE + head_lengths[last] : total;
    const int heads_end = last < tiles && head_lengths[last] > 0 ? last + 1 : last;

    const int columns = dim + 1, shares = REDUCE_THREADS / columns;
    const int share = threadIdx.x / columns, k = threadIdx.x % columns;
    float sum = 0;
    if (share < shares && (k < dim || linear_sums)) {
#pragma unroll 8  // loads on their way at once; the order of the sum stays
        for (int t = blockIdx.x + 1 + share; t < heads_end; t += shares) {
            sum += k < dim ? heads[(long long)t * dim + k] : linear_heads[t];
        }
    }
    partials[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < columns && (k < dim || linear_sums)) {
        float whole = k < dim ? tails[(long long)blockIdx.x * dim + k] : linear_tails[blockIdx.x];
        for (int s = 0; s < shares; s++) whole += partials[s * columns + k];
        if (k < dim) sums[(long long)start * dim + k] = whole;
        else linear_sums[start] = whole;
    }
    if (threadIdx.x == 0) {
        const int row = keys[start];
        rows[start] = row;
        counts[start] = end - start;
        slots[row] = start;
    }
}

// Forget the entries in use; the cost follows the batch, not the table.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) clear_slots(
    const long long* rows, int* counts, int* slots, int total
) {
    const long long entry = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (entry < total && counts[entry] > 0) {
        slots[rows[entry]] = -1;
        counts[entry] = 0;
    }
}
