// What memory gives to nothing but reads and writes, for each mix of them that a kernel of kernels.py has:
// the roofs that kernels are held against. Reads are added up, so that none is left out. Each thread has a
// contiguous part of every buffer and walks it front to back (`enum Way`): in one stream, or as four parts
// side by side, so that more reads are in flight wherever a page ends; or it asks ahead for what it reads, so
// that the next page is found in time. What is written goes past the cache, as nobody reads it soon; what is
// read and written goes back to where it was.
//
// LATE is what a softmax or a layer norm does with a row, and nothing else: everything is added up when it
// comes from memory and copied `lag` floats later, read again from the cache. So it tells which part of a
// kernel's way to the roof is this second read's.
//
// The threads are those that the kernels run on, a team of the OpenMP runtime that the caller names: threads
// of one's own between calls make Linux lay that team's threads onto one core for milliseconds when they
// wake.
#include <immintrin.h>
#include <stddef.h>
#include <time.h>

// UPDATE: three of four buffers are written back.
enum Mix { READ = 0, COPY = 1, SUM = 2, UPDATE = 3, LATE = 4 };
// The last two ask: into the second-level cache a page before; so much before that it is there in time, for
// one use.
enum Way { ONE_STREAM = 0, FOUR_STREAMS = 1, A_PAGE_AHEAD = 2, ONCE = 3 };

#define STREAMS_MAX 4
#define THREADS_MAX 64
#define PAGE 1024     // floats
#define IN_TIME 1536  // floats
#define WIDTH 16      // floats of a cache line

struct Part {
  enum Mix mix;
  enum Way way;
  float* buffers[4];
  size_t count;  // floats of each
  size_t lag;    // floats; of LATE
  float sum;
};

static inline __attribute__((always_inline)) __m256 Line(enum Mix mix, float* const* buffers, size_t i,
                                                         size_t lag, __m256 sum) {
  for (int half = 0; half < WIDTH; half += 8) {
    float* const a = buffers[0] + i + half;
    const __m256 x = _mm256_loadu_ps(a);
    switch (mix) {
      case READ: sum = _mm256_add_ps(sum, x); break;
      case COPY: _mm256_stream_ps(buffers[1] + i + half, x); break;
      case LATE:
        sum = _mm256_add_ps(sum, x);
        _mm256_stream_ps(buffers[1] + i + half - lag, _mm256_loadu_ps(a - lag));
        break;
      case SUM:
        _mm256_stream_ps(buffers[2] + i + half, _mm256_add_ps(x, _mm256_loadu_ps(buffers[1] + i + half)));
        break;
      case UPDATE:
        sum = _mm256_add_ps(sum, x);
        for (int k = 1; k < 4; ++k) {
          __m256 same = _mm256_loadu_ps(buffers[k] + i + half);
          __asm__("" : "+x"(same));  // else the compiler knows that storing it changes nothing
          _mm256_storeu_ps(buffers[k] + i + half, same);
        }
        break;
    }
  }
  return sum;
}

// Inlined always: of a function that only asks GCC believes that it does nothing, and leaves its calls out.
static inline __attribute__((always_inline)) void Ask(enum Mix mix, enum Way way, float* const* buffers,
                                                      size_t i) {
  const int read = mix == UPDATE ? 4 : mix == SUM ? 2 : 1;
  for (int k = 0; k < read; ++k) {
    if (way == A_PAGE_AHEAD) _mm_prefetch((const char*)(buffers[k] + i + PAGE), _MM_HINT_T1);
    if (way == ONCE) _mm_prefetch((const char*)(buffers[k] + i + IN_TIME), _MM_HINT_NTA);
  }
}

static inline int Streams(enum Way way) { return way == FOUR_STREAMS ? STREAMS_MAX : 1; }

// Four lines of each stream at a time, each with a sum of its own.
static inline __attribute__((always_inline)) float Walk(enum Mix mix, enum Way way, float* const* of_part,
                                                        size_t count, size_t lag) {
  const int streams = Streams(way);
  const size_t part = count / streams;
  float* const buffers[4] = {of_part[0], of_part[1], of_part[2], of_part[3]};  // no store changes these
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (size_t i = lag; i + 4 * WIDTH <= part; i += 4 * WIDTH) {
    for (int stream = 0; stream < streams; ++stream) {
      for (int line = 0; line < 4; ++line) {
        Ask(mix, way, buffers, stream * part + i + line * WIDTH);
        sums[line] = Line(mix, buffers, stream * part + i + line * WIDTH, lag, sums[line]);
      }
    }
  }
  _mm_sfence();
  const __m256 sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
  float lanes[8], total = 0;
  _mm256_storeu_ps(lanes, sum);
  for (int lane = 0; lane < 8; ++lane) total += lanes[lane];
  return total;
}

static inline __attribute__((always_inline)) float WalkPart(enum Mix mix, const struct Part* part, size_t lag) {
  switch (part->way) {
    case ONE_STREAM: return Walk(mix, ONE_STREAM, part->buffers, part->count, lag);
    case FOUR_STREAMS: return Walk(mix, FOUR_STREAMS, part->buffers, part->count, lag);
    case A_PAGE_AHEAD: return Walk(mix, A_PAGE_AHEAD, part->buffers, part->count, lag);
    case ONCE: return Walk(mix, ONCE, part->buffers, part->count, lag);
  }
  return 0;
}

// As libgomp's GOMP_parallel: runs `work` on a team of so many threads; and omp_get_thread_num.
typedef void (*Parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
typedef int (*ThreadNumber)(void);

struct Pass {
  ThreadNumber thread_number;
  struct Part parts[THREADS_MAX];
};

static void Work(void* data) {
  struct Pass* pass = data;
  struct Part* part = &pass->parts[pass->thread_number()];
  switch (part->mix) {
    case READ: part->sum = WalkPart(READ, part, 0); break;
    case COPY: part->sum = WalkPart(COPY, part, 0); break;
    case SUM: part->sum = WalkPart(SUM, part, 0); break;
    case UPDATE: part->sum = WalkPart(UPDATE, part, 0); break;
    case LATE: part->sum = WalkPart(LATE, part, part->lag); break;
  }
}

static double Now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Seconds of one pass over `count` floats of each buffer that the mix has, less what does not divide by the
// threads and streams, a few hundred, and less a lag for each thread and stream. `lag` is of LATE, a multiple
// of 16. What is written past the cache starts at a multiple of 32 bytes. -1 for arguments that it does not
// know.
double PassSeconds(Parallel parallel, ThreadNumber thread_number, int mix, int way, size_t lag,
                   float* const* buffers, size_t count, int threads) {
  struct Pass pass = {.thread_number = thread_number};
  if (threads < 1 || threads > THREADS_MAX || way < ONE_STREAM || way > ONCE) return -1;
  const size_t grain = WIDTH * 4 * STREAMS_MAX;
  const size_t share = count / threads / grain * grain;
  if ((mix == LATE) != (lag > 0) || lag % WIDTH != 0 || lag > share / Streams((enum Way)way)) return -1;
  for (int k = 0; k < threads; ++k) {
    struct Part* part = &pass.parts[k];
    part->mix = (enum Mix)mix;
    part->way = (enum Way)way;
    part->count = share;
    part->lag = lag;
    for (int b = 0; b < 4; ++b) part->buffers[b] = buffers[b] == NULL ? NULL : buffers[b] + share * k;
  }
  const double begin = Now();
  parallel(Work, &pass, (unsigned)threads, 0);
  return Now() - begin;
}
