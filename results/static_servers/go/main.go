// Servers in Go, and a client: http PORT, redis PORT, echo PORT; or pings PORT COUNT, as ../pings.c.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

const size = 64

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func accept(address string, serve func(net.Conn)) {
	listener, err := net.Listen("tcp", address)
	must(err)
	for {
		conn, err := listener.Accept()
		must(err)
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

func echo(conn net.Conn) {
	message := make([]byte, 4096)
	for {
		n, err := conn.Read(message)
		if err != nil {
			return
		}
		if _, err := conn.Write(message[:n]); err != nil {
			return
		}
	}
}

var (
	values = map[string][]byte{}
	lock   sync.RWMutex
)

func number(reader *bufio.Reader, mark byte) (int, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 3 || line[0] != mark {
		return 0, fmt.Errorf("no request: %q", line)
	}
	return strconv.Atoi(string(line[1 : len(line)-2]))
}

func request(reader *bufio.Reader) ([][]byte, error) {
	count, err := number(reader, '*')
	if err != nil || count < 1 || count > 64 {
		return nil, fmt.Errorf("no request of Redis")
	}
	words := make([][]byte, count)
	for i := range words {
		length, err := number(reader, '$')
		if err != nil || length < 0 || length > 1<<20 {
			return nil, fmt.Errorf("no word of Redis")
		}
		words[i] = make([]byte, length+2)
		if _, err := io.ReadFull(reader, words[i]); err != nil {
			return nil, err
		}
		words[i] = words[i][:length]
	}
	return words, nil
}

// Of Redis: SET, GET, and a refusal of all other commands, with which redis-benchmark goes on.
func redis(conn net.Conn) {
	reader, writer := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		words, err := request(reader)
		if err != nil {
			return
		}
		switch name := string(bytes.ToUpper(words[0])); {
		case name == "SET" && len(words) == 3:
			lock.Lock()
			values[string(words[1])] = words[2]
			lock.Unlock()
			writer.WriteString("+OK\r\n")
		case name == "GET" && len(words) == 2:
			lock.RLock()
			value := values[string(words[1])]
			lock.RUnlock()
			fmt.Fprintf(writer, "$%d\r\n%s\r\n", len(value), value)
		default:
			writer.WriteString("-ERR unknown command\r\n")
		}
		if reader.Buffered() == 0 {
			if writer.Flush() != nil {
				return
			}
		}
	}
}

func pings(address string, count int) {
	conn, err := net.Dial("tcp", address)
	must(err)
	message, times := make([]byte, size), make([]float64, count)
	for i := -count / 10; i < count; i++ {
		begin := time.Now()
		_, err := conn.Write(message)
		must(err)
		_, err = io.ReadFull(conn, message)
		must(err)
		if i >= 0 {
			times[i] = float64(time.Since(begin).Nanoseconds())
		}
	}
	sum := 0.0
	for _, time := range times {
		sum += time
	}
	sort.Float64s(times)
	fmt.Printf("%f", sum/float64(count))
	for _, percent := range []int{10, 50, 90, 99} {
		fmt.Printf(" %f", times[count*percent/100])
	}
	fmt.Println()
}

func main() {
	address := "127.0.0.1:" + os.Args[2]
	switch os.Args[1] {
	case "echo":
		accept(address, echo)
	case "redis":
		accept(address, redis)
	case "http":
		answer := bytes.Repeat([]byte("a"), 128)
		must(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) })))
	case "pings":
		count, err := strconv.Atoi(os.Args[3])
		must(err)
		pings(address, count)
	}
}
