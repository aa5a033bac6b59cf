package main

import (
	"fmt"
	"strconv"
	"strings"
)

// sizeFlag is a flag of bytes: a number with an optional suffix K, M, G or T,
// alone or as Ki, KiB and so on; all are powers of 1024.
type sizeFlag uint64

// String implements pflag.Value.
func (s *sizeFlag) String() string { return strconv.FormatUint(uint64(*s), 10) }

// Type implements pflag.Value.
func (s *sizeFlag) Type() string { return "size" }

// Set implements pflag.Value.
func (s *sizeFlag) Set(text string) error {
	n, err := parseSize(text)
	*s = sizeFlag(n)
	return err
}

func parseSize(text string) (uint64, error) {
	number, shift := text, 0
	for i, unit := range []string{"K", "M", "G", "T"} {
		head, tail, found := strings.Cut(text, unit)
		if found && (tail == "" || tail == "i" || tail == "iB") {
			number, shift = head, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is not a size: want a positive number of bytes, or one with the suffix K, M, G or T (powers of 1024)", text)
	}
	return n << shift, nil
}
