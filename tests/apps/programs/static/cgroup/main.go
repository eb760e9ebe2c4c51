// Starts a child in the control group of a folder, and prints the child's control group of version 2, or why there is no child.
package main

import (
	"fmt"
	"os"
	"os/exec"
	// It has C code, if programs may have any.
	_ "os/user"
	"syscall"
)

func main() {
	folder, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	child := exec.Command("/bin/grep", "^0::", "/proc/self/cgroup")
	child.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	out, err := child.Output()
	fmt.Println(string(out), err)
}
