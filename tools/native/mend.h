/* Included before every source file of libllama on x86-64. */
#pragma once
#if defined(__x86_64__) && defined(__GNUC__)

/* GCC 12 believes that the instruction which configures AMX's tiles reads 8 of its 64 bytes, leaves the others
   unwritten, and the program dies of an illegal instruction. Here it is told. */
#if defined(__AMX_TILE__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif

#ifndef __cplusplus
/* By this build_native.sh knows that a library has been mended so. */
static const char corral_mark[] __attribute__((used)) = "mended by corral: 3";

#ifdef GGML_USE_LLAMAFILE
#include <stdbool.h>
#include <stdint.h>
#ifdef __AVX512F__
#include "product.h"
#endif
struct ggml_compute_params;
bool llamafile_sgemm(const struct ggml_compute_params *, int64_t, int64_t, int64_t, const void *, int64_t,
                     const void *, int64_t, void *, int64_t, int, int, int);

/* tinyBLAS, and what is faster where there is something. Types are those of ggml: 0 has 32 bits, 1 has 16. */
static __attribute__((noinline)) bool corral_many(const struct ggml_compute_params *params, int64_t m, int64_t n,
                                                  int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                                                  void *c, int64_t ldc, int type_a, int type_b, int type_c) {
#ifdef __AVX512F__
    if (type_a == 1 && type_b == 1 && type_c == 0) {
        const struct corral_product product = {m, n, k, (const uint16_t *)a, lda, (const uint16_t *)b, ldb, (float *)c, ldc};
        const int *threads = (const int *)params; /* it begins with which one this is, and of how many */
        if (corral_multiply(&product, threads[0], threads[1])) return true;
    }
#endif
    return llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, type_a, type_b, type_c);
}

/* They round otherwise than what multiplies single tokens, and tinyBLAS would begin with two. From eight on, as many as
   a piece of a prompt has at least (MIN_CHUNK in corral/core/chunk.py), neither streams side by side nor drafts depend
   on it. */
static inline bool corral_sgemm(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k,
                                const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
                                int type_a, int type_b, int type_c) {
    return n >= 8 && corral_many(params, m, n, k, a, lda, b, ldb, c, ldc, type_a, type_b, type_c);
}
#define llamafile_sgemm corral_sgemm
#endif

#elif defined(__AVX512F__)
#include <immintrin.h>

/* The largest number of a row, for softmax: ggml's loop takes one at a time, since compilers may not reorder it. With
   the name changed, ggml's own is another overload of this one, for constant rows. */
template <class N> inline void corral_vec_max_f32(N n, float *result, float *row) {
    __m512 largest = _mm512_set1_ps(-__builtin_inff());
    N i = 0;
    for (; i + 16 <= n; i += 16) largest = _mm512_max_ps(_mm512_loadu_ps(row + i), largest);
    const __mmask16 rest = (__mmask16)((1u << (n - i)) - 1);
    largest = _mm512_mask_max_ps(largest, rest, _mm512_maskz_loadu_ps(rest, row + i), largest);
    *result = _mm512_reduce_max_ps(largest);
}
#define ggml_vec_max_f32 corral_vec_max_f32
#endif

#endif
