// As ../costs.c, in Go.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connection() (net.Conn, net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	one, err := net.Dial("tcp", listener.Addr().String())
	must(err)
	other, err := listener.Accept()
	must(err)
	return one, other
}

func main() {
	if len(os.Args) < 3 {
		return
	}
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	var begin time.Time
	if os.Args[1] == "calls" {
		begin = time.Now()
		for i := 0; i < count; i++ {
			syscall.Getppid()
		}
	} else {
		one, other := connection()
		bytes := make([]byte, 64)
		begin = time.Now()
		for i := 0; i < count; i++ {
			_, err := one.Write(bytes)
			must(err)
			_, err = io.ReadFull(other, bytes)
			must(err)
		}
	}
	fmt.Printf("%f\n", float64(time.Since(begin).Nanoseconds())/float64(count))
}
