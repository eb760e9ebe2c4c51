// Starts a child with a descriptor of its process, and waits for the child by that descriptor.
package main

import (
	"fmt"
	"os"
	// It has C code, if programs may have any.
	_ "os/user"
	"syscall"
	"unsafe"
)

func main() {
	const byDescriptor, ended = 3, 4
	descriptor := -1
	attributes := &os.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &descriptor}}
	child, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "exit 7"}, attributes)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// The kernel's siginfo: the child's number is the fifth word, and its status the seventh.
	var found [32]int32
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byDescriptor, uintptr(descriptor), uintptr(unsafe.Pointer(&found)), ended, 0, 0)
	fmt.Println(errno, found[4] == int32(child.Pid), found[6])
}
