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

/* tinyBLAS rounds otherwise than what multiplies single tokens, and would begin with two. From eight on, as many as a
   piece of a prompt has at least (MIN_CHUNK in corral/core/chunk.py), neither streams side by side nor drafts depend on it. */
#ifndef __cplusplus
#include <stdbool.h>
#include <stdint.h>
struct ggml_compute_params;
bool llamafile_sgemm(const struct ggml_compute_params *, int64_t, int64_t, int64_t, const void *, int64_t,
                     const void *, int64_t, void *, int64_t, int, int, int);
static inline bool corral_sgemm(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k,
                                const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
                                int type_a, int type_b, int type_c) {
    return n >= 8 && llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, type_a, type_b, type_c);
}
#define llamafile_sgemm corral_sgemm

/* By this build_native.sh knows that a library has been mended so. */
static const char corral_mark[] __attribute__((used)) = "mended by corral: 1";
#endif

#endif
