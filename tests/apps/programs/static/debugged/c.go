// A program with C, if there is a compiler for it.

//go:build cgo

package main

import "C"
