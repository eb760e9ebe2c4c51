module debugged

go 1.18
