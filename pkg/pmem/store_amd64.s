#include "textflag.h"

// Leaf functions that store to persistent memory. Every store is aligned and
// of at least 8 bytes, except in a word that is covered only in part, so that a
// crash cannot tear a word that is covered as a whole. String instructions
// (REP MOVSB) are not used: the width of their stores is undefined.
//
// A fault inside a leaf must unwind, so none of them moves SP.

// func cpuidLeaf7() (ebx, ecx uint32)
TEXT ·cpuidLeaf7(SB), NOSPLIT, $0-8
	XORL AX, AX
	XORL CX, CX
	CPUID
	CMPL AX, $7
	JLT  none
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL BX, ebx+0(FP)
	MOVL CX, ecx+4(FP)
	RET
none:
	MOVL $0, ebx+0(FP)
	MOVL $0, ecx+4(FP)
	RET

// func storeWord(p unsafe.Pointer, v uint64)
TEXT ·storeWord(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ v+8(FP), AX
	MOVQ AX, (DI)
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func copyPlain(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyPlain(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

head: // bytes up to the first aligned word
	TESTQ CX, CX
	JZ    done
	TESTQ $7, DI
	JZ    word
	MOVB  (SI), AX
	MOVB  AX, (DI)
	INCQ  SI
	INCQ  DI
	DECQ  CX
	JMP   head

word: // at most one word up to 16-byte alignment
	CMPQ  CX, $8
	JB    tail
	TESTQ $8, DI
	JZ    lines
	MOVQ  (SI), AX
	MOVQ  AX, (DI)
	ADDQ  $8, SI
	ADDQ  $8, DI
	SUBQ  $8, CX

lines:
	CMPQ  CX, $64
	JB    words
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVO  X0, (DI)
	MOVO  X1, 16(DI)
	MOVO  X2, 32(DI)
	MOVO  X3, 48(DI)
	ADDQ  $64, SI
	ADDQ  $64, DI
	SUBQ  $64, CX
	JMP   lines

words:
	CMPQ CX, $8
	JB   tail
	MOVQ (SI), AX
	MOVQ AX, (DI)
	ADDQ $8, SI
	ADDQ $8, DI
	SUBQ $8, CX
	JMP  words

tail:
	TESTQ CX, CX
	JZ    done
	MOVB  (SI), AX
	MOVB  AX, (DI)
	INCQ  SI
	INCQ  DI
	DECQ  CX
	JMP   tail

done:
	RET

// func zeroPlain(dst unsafe.Pointer, n uintptr)
TEXT ·zeroPlain(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ n+8(FP), CX
	XORL AX, AX
	PXOR X0, X0

head:
	TESTQ CX, CX
	JZ    done
	TESTQ $7, DI
	JZ    word
	MOVB  AX, (DI)
	INCQ  DI
	DECQ  CX
	JMP   head

word:
	CMPQ  CX, $8
	JB    tail
	TESTQ $8, DI
	JZ    lines
	MOVQ  AX, (DI)
	ADDQ  $8, DI
	SUBQ  $8, CX

lines:
	CMPQ CX, $64
	JB   words
	MOVO X0, (DI)
	MOVO X0, 16(DI)
	MOVO X0, 32(DI)
	MOVO X0, 48(DI)
	ADDQ $64, DI
	SUBQ $64, CX
	JMP  lines

words:
	CMPQ CX, $8
	JB   tail
	MOVQ AX, (DI)
	ADDQ $8, DI
	SUBQ $8, CX
	JMP  words

tail:
	TESTQ CX, CX
	JZ    done
	MOVB  AX, (DI)
	INCQ  DI
	DECQ  CX
	JMP   tail

done:
	RET

// func copyMOVNTI(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyMOVNTI(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	CMPQ    CX, $64
	JB      done
	MOVQ    (SI), R8
	MOVQ    8(SI), R9
	MOVQ    16(SI), R10
	MOVQ    24(SI), R11
	MOVNTIQ R8, (DI)
	MOVNTIQ R9, 8(DI)
	MOVNTIQ R10, 16(DI)
	MOVNTIQ R11, 24(DI)
	MOVQ    32(SI), R8
	MOVQ    40(SI), R9
	MOVQ    48(SI), R10
	MOVQ    56(SI), R11
	MOVNTIQ R8, 32(DI)
	MOVNTIQ R9, 40(DI)
	MOVNTIQ R10, 48(DI)
	MOVNTIQ R11, 56(DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $64, CX
	JMP     loop

done:
	RET

// func zeroMOVNTI(dst unsafe.Pointer, n uintptr)
TEXT ·zeroMOVNTI(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ n+8(FP), CX
	XORL AX, AX

loop:
	CMPQ    CX, $64
	JB      done
	MOVNTIQ AX, (DI)
	MOVNTIQ AX, 8(DI)
	MOVNTIQ AX, 16(DI)
	MOVNTIQ AX, 24(DI)
	MOVNTIQ AX, 32(DI)
	MOVNTIQ AX, 40(DI)
	MOVNTIQ AX, 48(DI)
	MOVNTIQ AX, 56(DI)
	ADDQ    $64, DI
	SUBQ    $64, CX
	JMP     loop

done:
	RET

// func copyNTAVX(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyNTAVX(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	CMPQ     CX, $64
	JB       done
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	ADDQ     $64, SI
	ADDQ     $64, DI
	SUBQ     $64, CX
	JMP      loop

done:
	VZEROUPPER
	RET

// func zeroNTAVX(dst unsafe.Pointer, n uintptr)
TEXT ·zeroNTAVX(SB), NOSPLIT, $0-16
	MOVQ  dst+0(FP), DI
	MOVQ  n+8(FP), CX
	VXORPS Y0, Y0, Y0

loop:
	CMPQ     CX, $64
	JB       done
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y0, 32(DI)
	ADDQ     $64, DI
	SUBQ     $64, CX
	JMP      loop

done:
	VZEROUPPER
	RET

// func copyNTAVX512(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyNTAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	CMPQ      CX, $64
	JB        done
	VMOVDQU64 (SI), Z0
	VMOVNTDQ  Z0, (DI)
	ADDQ      $64, SI
	ADDQ      $64, DI
	SUBQ      $64, CX
	JMP       loop

done:
	VZEROUPPER
	RET

// func zeroNTAVX512(dst unsafe.Pointer, n uintptr)
TEXT ·zeroNTAVX512(SB), NOSPLIT, $0-16
	MOVQ   dst+0(FP), DI
	MOVQ   n+8(FP), CX
	VPXORQ Z0, Z0, Z0

loop:
	CMPQ     CX, $64
	JB       done
	VMOVNTDQ Z0, (DI)
	ADDQ     $64, DI
	SUBQ     $64, CX
	JMP      loop

done:
	VZEROUPPER
	RET

// func copyMOVDIR64B(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyMOVDIR64B(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	CMPQ CX, $64
	JB   done
	BYTE $0x66; BYTE $0x0f; BYTE $0x38; BYTE $0xf8; BYTE $0x3e // MOVDIR64B (SI), DI
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JMP  loop

done:
	RET

// zeroLine is the source of zeroing with MOVDIR64B.
GLOBL zeroLine<>(SB), RODATA|NOPTR, $64

// func zeroMOVDIR64B(dst unsafe.Pointer, n uintptr)
TEXT ·zeroMOVDIR64B(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ n+8(FP), CX
	LEAQ zeroLine<>(SB), SI

loop:
	CMPQ CX, $64
	JB   done
	BYTE $0x66; BYTE $0x0f; BYTE $0x38; BYTE $0xf8; BYTE $0x3e // MOVDIR64B (SI), DI
	ADDQ $64, DI
	SUBQ $64, CX
	JMP  loop

done:
	RET

// func flushCLWB(p unsafe.Pointer, n uintptr)
TEXT ·flushCLWB(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	ADDQ DI, CX
	ANDQ $~63, DI

loop:
	CMPQ DI, CX
	JAE  done
	CLWB (DI)
	ADDQ $64, DI
	JMP  loop

done:
	RET

// func flushCLFLUSHOPT(p unsafe.Pointer, n uintptr)
TEXT ·flushCLFLUSHOPT(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	ADDQ DI, CX
	ANDQ $~63, DI

loop:
	CMPQ       DI, CX
	JAE        done
	CLFLUSHOPT (DI)
	ADDQ       $64, DI
	JMP        loop

done:
	RET

// func flushCLFLUSH(p unsafe.Pointer, n uintptr)
TEXT ·flushCLFLUSH(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ n+8(FP), CX
	ADDQ DI, CX
	ANDQ $~63, DI

loop:
	CMPQ    DI, CX
	JAE     done
	CLFLUSH (DI)
	ADDQ    $64, DI
	JMP     loop

done:
	RET
