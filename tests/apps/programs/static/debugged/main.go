// Adds up the numbers that it reads, for a debugger to watch.
package main

import "fmt"

var total int

//go:noinline
func add(value int) int {
	total += 2 * value
	return total
}

//go:noinline
func count(value int) int { return add(value) + 1 }

func main() {
	fmt.Println("ready")
	for value := 0; ; {
		if _, err := fmt.Scan(&value); err != nil {
			return
		}
		fmt.Println("count", count(value))
	}
}
