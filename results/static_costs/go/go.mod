module netacc.test/costs

go 1.18
