/* Products with 16-bit floats, as attention over a prompt has them: many short rows. tinyBLAS adds up along a row, and
   then across the lanes of a register, which costs more than rows of 64 numbers themselves. Here each lane has a row of
   its own. The sums of a result are made in the same order, whatever is computed beside it and by however many threads. */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { CORRAL_ROWS = 32, CORRAL_COLUMNS = 8, CORRAL_DEPTH = 256 };

/* c[j * ldc + i] is the sum of a[i * lda + l] * b[j * ldb + l] over all l < k, for all i < m and j < n. */
struct corral_product {
    int64_t m, n, k;
    const uint16_t *a;
    int64_t lda;
    const uint16_t *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
};

/* 16 rows side by side, zeros where there are fewer: eight numbers of each at a time, in three rounds that interleave
   the first half of the registers with the second. */
static inline void corral_pack(const uint16_t *a, int64_t n_rows, int64_t lda, int64_t depth, float *packed) {
    static const uint16_t nothing[CORRAL_DEPTH];
    const uint16_t *from[16];
    for (int i = 0; i < 16; i++) from[i] = i < n_rows ? a + i * lda : nothing;
    for (int64_t l = 0; l < depth; l += 8) {
        __m256i rows[8], next[8];
        for (int i = 0; i < 8; i++) {
            const __m128i low = _mm_loadu_si128((const __m128i *)(from[i] + l));
            const __m128i high = _mm_loadu_si128((const __m128i *)(from[i + 8] + l));
            rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        }
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 4; i++) {
                next[2 * i] = _mm256_unpacklo_epi16(rows[i], rows[i + 4]);
                next[2 * i + 1] = _mm256_unpackhi_epi16(rows[i], rows[i + 4]);
            }
            for (int i = 0; i < 8; i++) rows[i] = next[i];
        }
        for (int i = 0; i < 8; i++) _mm512_storeu_ps(packed + (l + i) * CORRAL_ROWS, _mm512_cvtph_ps(rows[i]));
    }
}

static inline void corral_unpack(const uint16_t *half, int64_t depth, float *single) {
    for (int64_t l = 0; l < depth; l += 16)
        _mm512_storeu_ps(single + l, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(half + l))));
}

/* Adds a depth of 32 packed rows, of which `rows` are wanted, to `n` columns of the result, or begins with it. */
static inline __attribute__((always_inline)) void corral_add(int n, const float *packed, __mmask32 rows, const float *b,
                                                             int64_t depth, bool begins, float *c, int64_t ldc) {
    const __mmask16 upper_rows = (__mmask16)rows, lower_rows = (__mmask16)(rows >> 16);
    __m512 first[CORRAL_COLUMNS], second[CORRAL_COLUMNS];
    for (int j = 0; j < n; j++) {
        first[j] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(upper_rows, c + j * ldc);
        second[j] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lower_rows, c + j * ldc + 16);
    }
    for (int64_t l = 0; l < depth; l++) {
        const __m512 upper = _mm512_loadu_ps(packed + l * CORRAL_ROWS);
        const __m512 lower = _mm512_loadu_ps(packed + l * CORRAL_ROWS + 16);
        for (int j = 0; j < n; j++) {
            const __m512 factor = _mm512_set1_ps(b[j * CORRAL_DEPTH + l]);
            first[j] = _mm512_fmadd_ps(upper, factor, first[j]);
            second[j] = _mm512_fmadd_ps(lower, factor, second[j]);
        }
    }
    for (int j = 0; j < n; j++) {
        _mm512_mask_storeu_ps(c + j * ldc, upper_rows, first[j]);
        _mm512_mask_storeu_ps(c + j * ldc + 16, lower_rows, second[j]);
    }
}

/* The same for the columns from `j` to `end`; rows begin at `i`, the depth at `l`. */
static void corral_add_columns(const struct corral_product *p, const float *packed, int64_t i, int64_t j, int64_t end,
                               int64_t l, int64_t depth) {
    const int64_t n_rows = p->m - i;
    const __mmask32 rows = n_rows < CORRAL_ROWS ? ((__mmask32)1 << n_rows) - 1 : ~(__mmask32)0;
    float unpacked[CORRAL_COLUMNS * CORRAL_DEPTH];
    while (j < end) {
        const int64_t left = end - j, n = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        for (int64_t at = 0; at < n; at++)
            corral_unpack(p->b + (j + at) * p->ldb + l, depth, unpacked + at * CORRAL_DEPTH);
        float *c = p->c + j * p->ldc + i;
        switch (n) {
        case 8: corral_add(8, packed, rows, unpacked, depth, l == 0, c, p->ldc); break;
        case 4: corral_add(4, packed, rows, unpacked, depth, l == 0, c, p->ldc); break;
        case 2: corral_add(2, packed, rows, unpacked, depth, l == 0, c, p->ldc); break;
        default: corral_add(1, packed, rows, unpacked, depth, l == 0, c, p->ldc);
        }
        j += n;
    }
}

/* The part of one of several threads: a run of tiles, along the columns of 32 rows and on to the next. False: rows of
   this length it cannot do. How many rows and columns there are decides nothing, they may be those of many requests. */
static bool corral_multiply(const struct corral_product *p, int64_t thread, int64_t n_threads) {
    if (p->k % 16 || !p->k) return false;
    float packed[CORRAL_ROWS * CORRAL_DEPTH];
    const int64_t n_across = (p->n + CORRAL_COLUMNS - 1) / CORRAL_COLUMNS;
    const int64_t n_tiles = (p->m + CORRAL_ROWS - 1) / CORRAL_ROWS * n_across;
    const int64_t end = n_tiles * (thread + 1) / n_threads;
    int64_t tile = n_tiles * thread / n_threads;
    while (tile < end) {
        const int64_t i = tile / n_across * CORRAL_ROWS, begin = tile % n_across;
        const int64_t across = begin + end - tile < n_across ? begin + end - tile : n_across;
        const int64_t n = across * CORRAL_COLUMNS < p->n ? across * CORRAL_COLUMNS : p->n;
        for (int64_t l = 0; l < p->k; l += CORRAL_DEPTH) {
            const int64_t depth = p->k - l < CORRAL_DEPTH ? p->k - l : CORRAL_DEPTH;
            const uint16_t *a = p->a + i * p->lda + l;
            corral_pack(a, p->m - i, p->lda, depth, packed);
            corral_pack(a + 16 * p->lda, p->m - i - 16, p->lda, depth, packed + 16);
            corral_add_columns(p, packed, i, begin * CORRAL_COLUMNS, n, l, depth);
        }
        tile += across - begin;
    }
    return true;
}
