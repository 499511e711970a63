// Enough of CUDA C to run a kernel on a CPU, one block after another: a thread is a fiber, and the fibers of a
// block take turns. A fiber stops at a barrier or a warp operation until all who must come have come.
//
// What real hardware would leave undefined ends the launch with a message: a warp operation whose lanes have
// returned, a barrier that some threads wait at and others do not. Shared memory starts out as NaN in each block.
// In reverse order of turns, a race shows as another result.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))

using std::max;
using std::min;

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

extern char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

namespace fibers {

constexpr unsigned WARP = 32, STACK = 64 * 1024, MOST = 1024;
enum class State { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
    ucontext_t context;
    State state;
    uint64_t offered;  // to the warp or the block
};

static std::vector<Fiber> all;
static std::vector<char> stacks;
static std::function<void()> body;
static ucontext_t scheduler;
static unsigned current;
static uint64_t seen[MOST];  // what the lanes of each warp offered, at its last operation
static uint64_t total;       // of what the threads of the block offered, at its last barrier

static void start() {
    body();
    all[current].state = State::DONE;
    swapcontext(&all[current].context, &scheduler);
}

static void wait(State state, uint64_t offered) {
    all[current].state = state;
    all[current].offered = offered;
    swapcontext(&all[current].context, &scheduler);
}

// Whether every fiber of a range waits at a warp operation (all of it) or a block's barrier (but for the done).
static bool arrived(unsigned begin, unsigned end, State state) {
    bool some = false;
    for (unsigned i = begin; i < end; i++) {
        if (state == State::AT_BLOCK && all[i].state == State::DONE) continue;
        if (all[i].state != state) return false;
        some = true;
    }
    return some;
}

static bool release(unsigned threads) {
    bool moved = false;
    for (unsigned begin = 0; begin < threads; begin += WARP) {
        if (!arrived(begin, begin + WARP, State::AT_WARP)) continue;
        for (unsigned i = begin; i < begin + WARP; i++) {
            seen[i] = all[i].offered;
            all[i].state = State::READY;
        }
        moved = true;
    }
    if (moved || !arrived(0, threads, State::AT_BLOCK)) return moved;
    total = 0;
    for (unsigned i = 0; i < threads; i++) {
        if (all[i].state != State::AT_BLOCK) continue;
        total += all[i].offered;
        all[i].state = State::READY;
    }
    return true;
}

static const char* run_block(unsigned threads, bool reverse) {
    if (__start_cuda_shared) std::memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
    for (unsigned i = 0; i < threads; i++) {
        all[i].state = State::READY;
        getcontext(&all[i].context);
        all[i].context.uc_stack.ss_sp = stacks.data() + (size_t)i * STACK;
        all[i].context.uc_stack.ss_size = STACK;
        all[i].context.uc_link = nullptr;
        makecontext(&all[i].context, start, 0);
    }
    do {
        for (unsigned turn = 0; turn < threads; turn++) {
            current = reverse ? threads - 1 - turn : turn;
            if (all[current].state != State::READY) continue;
            threadIdx = {current, 0, 0};
            swapcontext(&scheduler, &all[current].context);
        }
    } while (release(threads));
    for (unsigned i = 0; i < threads; i++) {
        if (all[i].state != State::DONE) return "some threads wait for others that never come";
    }
    return nullptr;
}

template <class T>
uint64_t bits_of(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

static const char* launch(unsigned blocks, unsigned threads, bool reverse, std::function<void()> kernel) {
    if (threads % WARP != 0 || threads > MOST) return "blocks of whole warps, 1024 threads at most";
    all.resize(MOST);
    stacks.resize((size_t)MOST * STACK);
    body = std::move(kernel);
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    for (unsigned turn = 0; turn < blocks; turn++) {
        blockIdx = {reverse ? blocks - 1 - turn : turn, 0, 0};
        if (const char* fault = run_block(threads, reverse)) return fault;
    }
    return nullptr;
}

}  // namespace fibers

inline int __syncthreads_count(int vote) {
    fibers::wait(fibers::State::AT_BLOCK, vote != 0);
    return (int)fibers::total;
}
inline int __syncthreads_or(int vote) { return __syncthreads_count(vote) > 0; }
inline void __syncthreads() { __syncthreads_count(0); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int step) {  // the mask of all lanes alone
    const unsigned lane = threadIdx.x;
    fibers::wait(fibers::State::AT_WARP, fibers::bits_of(value));
    std::memcpy(&value, &fibers::seen[lane ^ (unsigned)step], sizeof value);
    return value;
}

template <class T>
T atomicAdd(T* place, T value) {
    const T old = *place;
    *place += value;
    return old;
}

template <class T>
T atomicMin(T* place, T value) {
    const T old = *place;
    *place = std::min(old, value);
    return old;
}
