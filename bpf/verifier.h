/* Keeps bounds checks where the verifier of every kernel can follow them. */
#ifndef MRC_VERIFIER_H
#define MRC_VERIFIER_H

/* Hide a value from the compiler. It then neither moves a check of the value away from the register that is used, nor
 * folds two checks into one of a difference, nor drops a mask that it can prove: verifiers know less (6.12 does not
 * bound the result of a byte swap).
 */
#define OPAQUE(value) asm volatile("" : "+r"(value))

#endif
