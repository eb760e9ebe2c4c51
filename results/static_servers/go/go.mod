module netacc.test/servers

go 1.18
