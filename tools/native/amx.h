/* GCC 12 believes that the instruction which configures AMX's tiles reads 8 of its 64 bytes, leaves the others
   unwritten, and the program dies of an illegal instruction. Here it is told. Included before every source file. */
#pragma once
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif
