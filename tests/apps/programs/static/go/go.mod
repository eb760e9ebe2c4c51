module netacc.test/echo

go 1.18
