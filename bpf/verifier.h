/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Keeps bounds checks in a form that the verifiers of all supported kernels can follow. */
#ifndef MRC_VERIFIER_H
#define MRC_VERIFIER_H

/* Hide a value from the compiler. Then it does not move a check away from the register that is used, fold two checks
 * into one of a difference, or drop a mask that it can prove redundant. Verifiers prove less: that of 6.12 does not
 * bound the result of a byte swap.
 */
#define OPAQUE(value) asm volatile("" : "+r"(value))

#endif
