#include "textflag.h"

// Leaf functions that store to persistent memory. Every store is aligned and
// of at least 8 bytes, except in a word that is covered only in part, so that a
// crash cannot tear a word that is covered as a whole.

// func cacheTypeRegister() uint64
TEXT ·cacheTypeRegister(SB), NOSPLIT, $0-8
	MRS  CTR_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func storeWord(p unsafe.Pointer, v uint64)
TEXT ·storeWord(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	DSB $15
	RET

// func copyPlain(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyPlain(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2

head: // bytes up to the first aligned word
	CBZ  R2, done
	TST  $7, R0
	BEQ  lines
	MOVBU.P 1(R1), R3
	MOVB.P R3, 1(R0)
	SUB  $1, R2
	B    head

lines:
	CMP   $64, R2
	BLO   words
	LDP.P 16(R1), (R3, R4)
	LDP.P 16(R1), (R5, R6)
	LDP.P 16(R1), (R7, R8)
	LDP.P 16(R1), (R9, R10)
	STP.P (R3, R4), 16(R0)
	STP.P (R5, R6), 16(R0)
	STP.P (R7, R8), 16(R0)
	STP.P (R9, R10), 16(R0)
	SUB   $64, R2
	B     lines

words:
	CMP    $8, R2
	BLO    tail
	MOVD.P 8(R1), R3
	MOVD.P R3, 8(R0)
	SUB    $8, R2
	B      words

tail:
	CBZ    R2, done
	MOVBU.P 1(R1), R3
	MOVB.P R3, 1(R0)
	SUB    $1, R2
	B      tail

done:
	RET

// func zeroPlain(dst unsafe.Pointer, n uintptr)
TEXT ·zeroPlain(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R0
	MOVD n+8(FP), R2

head:
	CBZ    R2, done
	TST    $7, R0
	BEQ    lines
	MOVB.P ZR, 1(R0)
	SUB    $1, R2
	B      head

lines:
	CMP   $64, R2
	BLO   words
	STP.P (ZR, ZR), 16(R0)
	STP.P (ZR, ZR), 16(R0)
	STP.P (ZR, ZR), 16(R0)
	STP.P (ZR, ZR), 16(R0)
	SUB   $64, R2
	B     lines

words:
	CMP    $8, R2
	BLO    tail
	MOVD.P ZR, 8(R0)
	SUB    $8, R2
	B      words

tail:
	CBZ    R2, done
	MOVB.P ZR, 1(R0)
	SUB    $1, R2
	B      tail

done:
	RET

// func cleanCVAP(p unsafe.Pointer, n, line uintptr)
TEXT ·cleanCVAP(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
	MOVD line+16(FP), R2
	ADD  R0, R1
	SUB  $1, R2, R3
	BIC  R3, R0

loop:
	CMP  R1, R0
	BHS  done
	DC   CVAP, R0
	ADD  R2, R0
	B    loop

done:
	RET

// func cleanCVADP(p unsafe.Pointer, n, line uintptr)
TEXT ·cleanCVADP(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD n+8(FP), R1
	MOVD line+16(FP), R2
	ADD  R0, R1
	SUB  $1, R2, R3
	BIC  R3, R0

loop:
	CMP  R1, R0
	BHS  done
	DC   CVADP, R0
	ADD  R2, R0
	B    loop

done:
	RET
