// Both ends of checked conversations, in Go, while its garbage collector runs.
//
//	serve PORT: returns what it gets.
//	connect PORT COUNT: COUNT goroutines; each sends messages of random bytes and sizes, and compares the answers. The collector
//	  and the profiler run all the time, children are started, and nil pointers are recovered from.
//	run PROGRAM ARGUMENTS: a child.
//	relay PORT: serves until SIGHUP, and then starts itself with its listener, which it closes. Ends when its connections have.
//	crash: writes to a nil pointer in a goroutine.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	rounds = 2000
	most   = 4096
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func serve(listener net.Listener) {
	var served sync.WaitGroup
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			served.Wait()
			return
		}
		must(err)
		served.Add(1)
		go func() {
			defer served.Done()
			defer conn.Close()
			io.Copy(onlyWriter{conn}, onlyReader{conn})
		}()
	}
}

func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	must(err)
	return listener
}

// The listener is the first descriptor after those of each program.
func takeOver() net.Listener {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	must(err)
	fmt.Println("taken over")
	return listener
}

func handOver(listener net.Listener) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	fmt.Println("ready")
	<-asked
	file, err := listener.(*net.TCPListener).File()
	must(err)
	child := exec.Command(os.Args[0], "taken", "0")
	child.Stdout, child.Stderr, child.ExtraFiles = os.Stdout, os.Stderr, []*os.File{file}
	must(child.Start())
	must(listener.Close())
}

func crash() {
	var nothing *[1 << 20]byte
	nothing[7] = 1
}

// Without the shortcuts of a TCP connection (splice).
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

func converse(address string, seed int64) int64 {
	random := rand.New(rand.NewSource(seed))
	conn, err := net.Dial("tcp", address)
	must(err)
	defer conn.Close()
	total := int64(0)
	for round := 0; round < rounds; round++ {
		sent := make([]byte, 1+random.Intn(most))
		random.Read(sent)
		got := make([]byte, len(sent))
		_, err := conn.Write(sent)
		must(err)
		_, err = io.ReadFull(conn, got)
		must(err)
		if !bytes.Equal(sent, got) {
			fmt.Fprintln(os.Stderr, "an answer differs from its message")
			os.Exit(1)
		}
		total += int64(2 * len(sent))
	}
	return total
}

func recovers() (recovered bool) {
	defer func() { recovered = recover() != nil }()
	var nothing *[1 << 20]byte
	nothing[5] = 1
	return false
}

// Runs until the conversations are over: collections, children, faults.
func disturb(over *int32) {
	for atomic.LoadInt32(over) == 0 {
		runtime.GC()
		if !recovers() {
			must(fmt.Errorf("a nil pointer was written to"))
		}
		out, err := exec.Command("/bin/echo", "a", "child").Output()
		must(err)
		if string(out) != "a child\n" {
			must(fmt.Errorf("the child printed %q", out))
		}
		time.Sleep(time.Millisecond)
	}
}

func main() {
	if os.Args[1] == "run" {
		child := exec.Command(os.Args[2], os.Args[3:]...)
		child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		must(child.Run())
		return
	}
	if os.Args[1] == "crash" {
		go crash()
		select {}
	}
	port, err := strconv.Atoi(os.Args[2])
	must(err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	switch os.Args[1] {
	case "serve":
		serve(listen(address))
	case "taken":
		serve(takeOver())
	case "relay":
		listener := listen(address)
		go handOver(listener)
		serve(listener)
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	must(pprof.StartCPUProfile(io.Discard))
	fmt.Println("begun")
	var over int32
	var disturber, talkers sync.WaitGroup
	disturber.Add(1)
	go func() { defer disturber.Done(); disturb(&over) }()
	var total int64
	for i := 0; i < count; i++ {
		talkers.Add(1)
		go func(seed int64) { defer talkers.Done(); atomic.AddInt64(&total, converse(address, seed)) }(int64(i))
	}
	talkers.Wait()
	atomic.StoreInt32(&over, 1)
	disturber.Wait()
	fmt.Printf("done {\"requests\": %d, \"payload_bytes\": %d, \"seconds\": 0}\n", count*rounds, total)
	io.Copy(io.Discard, os.Stdin)
}
