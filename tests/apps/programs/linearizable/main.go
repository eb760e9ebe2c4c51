// Linearizable checks a history of operations on registers with Porcupine.
//
// The history is on standard input, one operation in JSON a line. The result is one word on standard output: ok, illegal,
// or unknown if the time was too short.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 60 * time.Second

// Operation is a line of the history. Times are of one clock.
type Operation struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	// Kind is read, write or swap: a write if the register has the expected value.
	Kind     string `json:"kind"`
	Value    string `json:"value"`
	Expected string `json:"expected"`
	// Found is what a read has found.
	Found string `json:"found"`
	// Swapped is whether a swap found the expected value.
	Swapped bool  `json:"swapped"`
	Begin   int64 `json:"begin"`
	// End is missing if nobody knows whether and when the operation took effect.
	End *int64 `json:"end"`
}

// register is the model: its state is the value, and an unknown result may be any.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		var order []string
		parts := map[string][]porcupine.Operation{}
		for _, one := range history {
			key := one.Input.(Operation).Key
			if _, known := parts[key]; !known {
				order = append(order, key)
			}
			parts[key] = append(parts[key], one)
		}
		var result [][]porcupine.Operation
		for _, key := range order {
			result = append(result, parts[key])
		}
		return result
	},
	Init: func() interface{} { return "" },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		value, one := state.(string), input.(Operation)
		known := one.End != nil
		switch one.Kind {
		case "read":
			return !known || value == one.Found, value
		case "write":
			return true, one.Value
		case "swap":
			fits := value == one.Expected
			if known && fits != one.Swapped {
				return false, value
			}
			if fits {
				return true, one.Value
			}
			return true, value
		}
		return false, value
	},
}

func main() {
	var history []porcupine.Operation
	lines := json.NewDecoder(os.Stdin)
	for {
		var one Operation
		err := lines.Decode(&one)
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		end := int64(math.MaxInt64)
		if one.End != nil {
			end = *one.End
		}
		history = append(history, porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Begin, Return: end})
	}
	switch porcupine.CheckOperationsTimeout(register, history, patience) {
	case porcupine.Ok:
		fmt.Println("ok")
	case porcupine.Illegal:
		fmt.Println("illegal")
	default:
		fmt.Println("unknown")
	}
}
