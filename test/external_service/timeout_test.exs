# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.TimeoutTest do
  use ExternalService.Case, async: true

  alias ExternalService.{AttemptTimeout, Concurrency, Deadline, DeadlineExceeded}

  # Far longer than anything here takes; only a test that fails waits for its end.
  @long 60_000

  defp hang, do: Process.sleep(:infinity)

  # A function for `call` that tells who runs it, and then runs `fun`.
  defp telling(fun) do
    test = self()
    fn -> send(test, {:running, self()}) && fun.() end
  end

  defp running do
    assert_receive {:running, pid}, @long
    pid
  end

  defp dead?(pid) do
    ref = Process.monitor(pid)
    assert_receive {:DOWN, ^ref, _, _, _}, @long
    true
  end

  # What a process is told that watches for stray messages.
  defp mailbox, do: Process.info(self(), :messages)

  describe "an attempt without a timeout" do
    test "runs in the calling process", %{service: s} do
      ExternalService.start(s, circuit_breaker: [slow_call: 10], concurrency: [limit: 1], rate_limit: [limit: 5, per: 1])

      assert ExternalService.call(s, &self/0) == self()
      assert ExternalService.call(s, [timeout: :infinity], &self/0) == self()
    end
  end

  describe "an attempt with a timeout" do
    setup %{service: s}, do: ExternalService.start(s, timeout: @long, retry: [max_attempts: 1])

    test "runs in a process of its own, which ends with it", %{service: s} do
      assert ExternalService.call(s, telling(fn -> :done end)) == :done
      assert running() != self()
      assert ExternalService.call(s, &self/0) |> dead?()
    end

    test "returns, raises, throws and exits as if there were no process between", %{service: s} do
      assert ExternalService.call(s, fn -> {:error, :as_it_is} end) == {:error, :as_it_is}
      assert catch_throw(ExternalService.call(s, fn -> throw(:ball) end)) == :ball
      assert catch_exit(ExternalService.call(s, fn -> exit(:gone) end)) == :gone
      assert catch_exit(ExternalService.call(s, fn -> exit(:normal) end)) == :normal
      assert catch_error(ExternalService.call(s, fn -> :erlang.error(:badarith) end)) == :badarith

      raising = fn -> raise KeyError, key: :a, term: %{} end
      assert_raise KeyError, fn -> ExternalService.call(s, raising) end
      assert mailbox() == {:messages, []}
    end

    test "raises with the stacktrace of where it was raised", %{service: s} do
      ExternalService.call(s, fn -> String.to_integer(Process.get(:no_number, "x")) end)
    rescue
      ArgumentError -> assert [{:erlang, :binary_to_integer, ["x"], _} | _] = __STACKTRACE__
    end

    test "has its exceptions retried like another", %{service: s} do
      raising = attempting(fn -> raise KeyError, key: :a, term: %{} end)
      retry = [retry_exceptions: [KeyError], max_attempts: 3, base: 0]
      assert_raise KeyError, fn -> ExternalService.call(s, retry, raising) end
      assert attempts() == 3
    end

    test "is called by who calls, as a task is", %{service: s} do
      Process.put(:"$callers", [:someone])
      Process.put(:"$ancestors", [:somebody])
      {callers, ancestors} = ExternalService.call(s, fn -> {Process.get(:"$callers"), Process.get(:"$ancestors")} end)
      assert callers == [self(), :someone]
      assert ancestors == [self(), :somebody]

      task = Task.async(fn -> ExternalService.call(s, fn -> Process.get(:"$callers") end) end)
      assert Task.await(task) == [task.pid, self(), :someone]
    end

    test "names its caller among the ancestors where it has a name", %{service: s} do
      Process.register(self(), __MODULE__)
      assert [__MODULE__ | _] = ExternalService.call(s, fn -> Process.get(:"$ancestors") end)
    end

    test "has its caller's logger metadata and group leader", %{service: s} do
      Logger.metadata(request_id: "r1")
      assert ExternalService.call(s, fn -> Logger.metadata()[:request_id] end) == "r1"
      {:ok, leader} = StringIO.open("")
      before = Process.group_leader()
      Process.group_leader(self(), leader)
      inside = ExternalService.call(s, &Process.group_leader/0)
      Process.group_leader(self(), before)
      assert inside == leader
    end

    test "has its caller's tracing context", %{service: s} do
      :otel_ctx.attach(%{span: 1})
      assert ExternalService.call(s, &:otel_ctx.get_current/0) == %{span: 1}
    end

    test "has its caller's deadline", %{service: s} do
      assert Deadline.with_deadline(1_000, fn -> ExternalService.call(s, &Deadline.remaining/0) end) in 1..1_000
    end

    test "leaves what it linked to itself alone when it ends well", %{service: s} do
      pid = ExternalService.call(s, fn -> spawn_link(&hang/0) end)
      assert Process.alive?(pid)
      Process.exit(pid, :kill)
    end

    test "ends as its caller would when something that it linked fails", %{service: s} do
      Process.flag(:trap_exit, true)

      broken = fn ->
        spawn_link(fn -> exit(:broken) end)
        hang()
      end

      assert catch_exit(ExternalService.call(s, broken)) == :broken
      assert mailbox() == {:messages, []}
    end

    test "leaves no message in the mailbox of a caller that traps exits", %{service: s} do
      Process.flag(:trap_exit, true)
      for _ <- 1..100, do: assert(ExternalService.call(s, fn -> :fine end) == :fine)
      for _ <- 1..20, do: ExternalService.call(s, [timeout: 1], &hang/0)
      assert mailbox() == {:messages, []}
      assert Process.info(self(), :links) == {:links, []}
      assert Process.info(self(), :monitors) == {:monitors, []}
    end

    test "finds no message that was not sent to it", %{service: s} do
      assert ExternalService.call(s, fn -> receive(do: (message -> message), after: (0 -> :none)) end) == :none
      sent = fn -> send(self(), :sent) && receive(do: (message -> message)) end
      assert ExternalService.call(s, sent) == :sent
    end

    test "does not look through the messages that its caller had before", %{service: s} do
      reductions = fn ->
        {:reductions, before} = Process.info(self(), :reductions)
        for _ <- 1..100, do: ExternalService.call(s, fn -> :fine end)
        {:reductions, now} = Process.info(self(), :reductions)
        now - before
      end

      reductions.()
      few = reductions.()
      for n <- 1..20_000, do: send(self(), n)
      assert reductions.() < 10 * few
    end

    test "finds its answer behind a long queue of messages", %{service: s} do
      for n <- 1..50_000, do: send(self(), n)
      assert ExternalService.call(s, fn -> :found end) == :found
      assert {:message_queue_len, 50_000} = Process.info(self(), :message_queue_len)
    end
  end

  describe "an attempt that takes too long" do
    setup %{service: s}, do: ExternalService.start(s, timeout: 1, retry: [max_attempts: 1])

    test "is killed, with what it had linked", %{service: s} do
      test = self()

      linking = fn ->
        send(test, {:linked, spawn_link(&hang/0)})
        hang()
      end

      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, [timeout: 50], telling(linking))
      assert_receive {:linked, linked}
      assert dead?(running()) and dead?(linked)
    end

    test "is killed even where it traps exits", %{service: s} do
      stubborn = fn -> Process.flag(:trap_exit, true) == false && hang() end
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, [timeout: 50], telling(stubborn))
      assert dead?(running())
    end

    test "is an error that says how long it had", %{service: s} do
      assert {:error, error} = ExternalService.call(s, [timeout: 2], &hang/0)
      assert %AttemptTimeout{context: %{service: ^s, timeout: 2, attempts: 1}} = error
      assert_raise AttemptTimeout, fn -> ExternalService.call!(s, &hang/0) end
    end

    test "is retried, told of, and a failure for the breaker each time", %{service: s} do
      Recorder.attach(s, [[:call, :retry], [:timeout]])
      retry = [max_attempts: 3, base: 0]
      assert {:error, %AttemptTimeout{context: %{attempts: 3}}} = ExternalService.call(s, retry, attempting(&hang/0))
      assert attempts() == 3
      assert ExternalService.counts(s).failures == 3

      assert [{[:timeout], %{count: 1, timeout: 1}, %{service: ^s}}, {[:call, :retry], _, %{reason: reason}} | rest] =
               Recorder.events()

      assert %AttemptTimeout{} = reason
      assert length(rest) == 4
    end

    test "is no reason to give up while a later attempt is quicker", %{service: s} do
      results = [&hang/0, &hang/0, fn -> :quick end]
      assert ExternalService.call(s, [max_attempts: 3, base: 0, timeout: 100], attempting_each(results)) == :quick
    end

    test "is not the caller's deadline: each attempt has its own time", %{service: s} do
      options = [timeout: 20, deadline: @long, max_attempts: 3, base: 0]
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, options, attempting(&hang/0))
      assert attempts() == 3
    end

    test "gives back its slot at once", %{service: s} do
      ExternalService.start(s, timeout: 1, retry: [max_attempts: 1], concurrency: [limit: 1])
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, &hang/0)
      assert Concurrency.in_flight(s) == 0
      assert ExternalService.call(s, [timeout: @long], fn -> Concurrency.in_flight(s) end) == 1
    end

    test "as a probe opens the breaker again", %{service: s} do
      options = [timeout: 1, retry: [max_attempts: 1], circuit_breaker: [tolerate: 0, reset: 0, half_open: true]]
      ExternalService.start(s, options)
      fail(s)
      assert ExternalService.state(s) == :half_open
      Recorder.attach(s, [[:circuit_breaker, :opened], [:circuit_breaker, :closed]])
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, &hang/0)
      assert Recorder.names() == [[:circuit_breaker, :opened]]
    end

    test "three times is three failures, and what it would have returned later changes no count", %{service: s} do
      clock = start_on_clock(s, timeout: 50, retry: [max_attempts: 1], circuit_breaker: [failure_rate: 1.0])
      late = fn -> VirtualClock.advance(clock, 100) && :late end
      for _ <- 1..3, do: assert({:error, %AttemptTimeout{}} = ExternalService.call(s, late))
      counts = ExternalService.counts(s)
      assert %{calls: 3, failures: 3, successes: 0, ignored: 0} = counts
      VirtualClock.advance(clock, 100)
      assert ExternalService.counts(s) == counts
    end

    test "three times in real time is three failures, before and after the late results were due", %{service: s} do
      ExternalService.start(s, timeout: 50, retry: [max_attempts: 1], circuit_breaker: [failure_rate: 1.0])
      pid = self()
      late = fn -> Process.sleep(100) && send(pid, :late) end
      for _ <- 1..3, do: assert({:error, %AttemptTimeout{}} = ExternalService.call(s, late))
      assert %{calls: 3, failures: 3, successes: 0, ignored: 0} = ExternalService.counts(s)
      refute_receive :late, 150
      assert %{calls: 3, failures: 3, successes: 0, ignored: 0} = ExternalService.counts(s)
    end
  end

  describe "on a virtual clock" do
    test "an attempt is over when the clock has moved on, whoever moved it", %{service: s} do
      clock = start_on_clock(s, timeout: 1_000, retry: [max_attempts: 1])
      task = Task.async(fn -> ExternalService.call(s, fn -> hang() end) end)
      eventually(fn -> match?({:monitors, [_ | _]}, Process.info(task.pid, :monitors)) end)
      VirtualClock.advance(clock, 999)
      refute Task.yield(task, 20)
      VirtualClock.advance(clock, 1)
      assert {:error, %AttemptTimeout{}} = Task.await(task, @long)
    end

    test "an attempt that stays within its time is not", %{service: s} do
      clock = start_on_clock(s, timeout: 1_000)
      assert ExternalService.call(s, fn -> VirtualClock.advance(clock, 1_000) end) == :ok
    end
  end

  describe "a deadline on another clock than the service's" do
    test "ends an attempt that hangs, and the service's timeout does as well", %{service: s} do
      clock = start_on_clock(s, deadline: @long, timeout: @long, retry: [max_attempts: 1])
      task = Task.async(fn -> Deadline.with_deadline(5, fn -> ExternalService.call(s, &hang/0) end) end)
      assert {:error, %DeadlineExceeded{context: %{deadline: 5}}} = Task.await(task, @long)

      tell = telling(&hang/0)
      task = Task.async(fn -> Deadline.with_deadline(@long - 1, fn -> ExternalService.call(s, tell) end) end)
      running()
      VirtualClock.advance(clock, @long)
      assert {:error, %AttemptTimeout{}} = Task.await(task, @long)
    end

    test "is no deadline on that of the service", %{service: s} do
      clock = start_on_clock(s, timeout: @long)
      slow = fn -> VirtualClock.advance(clock, @long) && :fine end
      assert Deadline.with_deadline(@long - 1, fn -> ExternalService.call(s, slow) end) == :fine
      assert mailbox() == {:messages, []}
    end
  end

  describe "a caller that is killed" do
    defp caller(service, fun, options \\ []) do
      test = self()
      pid = spawn(fn -> ExternalService.call(service, options, fn -> send(test, {:running, self()}) && fun.() end) end)
      {pid, running()}
    end

    test "takes its attempt, and what that linked, along", %{service: s} do
      ExternalService.start(s, timeout: @long)
      test = self()

      {caller, attempt} = caller(s, fn -> send(test, {:linked, spawn_link(&hang/0)}) && hang() end)
      assert_receive {:linked, linked}
      Process.exit(caller, :kill)
      assert dead?(caller) and dead?(attempt) and dead?(linked)
    end

    test "leaves no process behind in 10^4 rounds, whenever it dies", %{service: s} do
      ExternalService.start(s, timeout: @long, retry: [max_attempts: 1], circuit_breaker: [tolerate: :infinity])
      before = length(Process.list())

      for round <- 1..10_000 do
        pid = spawn(fn -> ExternalService.call(s, &hang/0) end)
        for _ <- 1..rem(round, 7)//1, do: :erlang.yield()
        Process.exit(pid, :kill)
      end

      eventually(fn -> length(Process.list()) <= before + 5 end, 1_000_000)
    end
  end
end
