# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.DeadlineTest do
  use ExternalService.Case, async: true

  alias ExternalService.{AttemptTimeout, Concurrency, Deadline, DeadlineExceeded, RateLimited, ServiceSaturated}

  doctest ExternalService.Deadline

  # Long enough that no test comes near it.
  @long 60_000

  describe "with_deadline/2" do
    test "gives what is inside so many milliseconds, and what comes after none" do
      assert Deadline.with_deadline(@long, fn -> Deadline.remaining() end) in 1..@long
      assert Deadline.remaining() == :infinity
    end

    test "returns, raises, throws and exits as the function does, and ends with it" do
      assert Deadline.with_deadline(@long, fn -> :result end) == :result
      assert catch_error(Deadline.with_deadline(@long, fn -> raise "no" end)) == %RuntimeError{message: "no"}
      assert catch_throw(Deadline.with_deadline(@long, fn -> throw(:ball) end)) == :ball
      assert catch_exit(Deadline.with_deadline(@long, fn -> exit(:gone) end)) == :gone
      assert Deadline.remaining() == :infinity
    end

    test "inside another takes the smaller of the two" do
      Deadline.with_deadline(10_000, fn ->
        assert Deadline.with_deadline(@long, &Deadline.remaining/0) <= 10_000
        assert Deadline.with_deadline(:infinity, &Deadline.remaining/0) <= 10_000
        assert Deadline.with_deadline(5_000, &Deadline.remaining/0) <= 5_000
        assert Deadline.remaining() in 5_001..10_000
      end)
    end

    test "of 0 is over at once, and one that no clock reaches is none that is ever over" do
      assert Deadline.with_deadline(0, fn -> {Deadline.remaining(), Deadline.expired?()} end) == {0, true}
      assert Deadline.with_deadline(Integer.pow(10, 30), fn -> Deadline.expired?() end) == false
      refute Deadline.expired?()
    end

    test "refuses what is no time" do
      for wrong <- [-1, 1.5, nil, "5"],
          do: assert_raise(FunctionClauseError, fn -> Deadline.with_deadline(wrong, fn -> 1 end) end)
    end
  end

  describe "a header" do
    test "says what is left, and is read back" do
      assert {:ok, ms} = Deadline.from_header(Deadline.with_deadline(@long, &Deadline.to_header/0))
      assert ms in 1..@long
    end

    test "is nil without a deadline" do
      assert Deadline.to_header() == nil
    end

    test "that is no number of milliseconds is :error" do
      for header <- ["", "-5", "1.5", "5s", " 5", "5 ", "soon", String.duplicate("9", 100), nil, 5, :infinity],
          do: assert(Deadline.from_header(header) == :error)
    end
  end

  describe "attach/1" do
    test "takes what is left to a task, a message and an agent" do
      Deadline.with_deadline(@long, fn ->
        remaining = Deadline.attach(&Deadline.remaining/0)
        assert Task.await(Task.async(remaining)) in 1..@long
        {:ok, agent} = Agent.start_link(fn -> nil end)
        assert Agent.get(agent, Deadline.attach(fn nil -> Deadline.remaining() end)) in 1..@long
        assert Task.await(Task.async(&Deadline.remaining/0)) == :infinity
      end)
    end

    test "keeps the function's arity, up to three" do
      Deadline.with_deadline(@long, fn ->
        assert Deadline.attach(fn -> [] end).() == []
        assert Deadline.attach(fn a -> [a] end).(1) == [1]
        assert Deadline.attach(fn a, b -> [a, b] end).(1, 2) == [1, 2]
        assert Deadline.attach(fn a, b, c -> [a, b, c] end).(1, 2, 3) == [1, 2, 3]

        assert Enum.to_list(Task.async_stream([1, 2], Deadline.attach(&{&1, Deadline.expired?()}))) == [
                 ok: {1, false},
                 ok: {2, false}
               ]
      end)
    end

    test "refuses a function of four, with a deadline and without" do
      attach = fn -> Deadline.attach(fn _, _, _, _ -> 1 end) end
      assert_raise FunctionClauseError, ~r/attach/, attach
      assert_raise FunctionClauseError, ~r/attach/, fn -> Deadline.with_deadline(@long, attach) end
    end

    test "counts from when the function runs: it carries no reading of a clock" do
      late = Deadline.with_deadline(@long, fn -> Deadline.attach(&Deadline.remaining/0) end)
      assert late.() in 1..@long
      assert Deadline.remaining() == :infinity
    end

    test "does not lengthen a deadline that is there" do
      remaining = Deadline.with_deadline(@long, fn -> Deadline.attach(&Deadline.remaining/0) end)
      assert Deadline.with_deadline(1_000, remaining) <= 1_000
    end

    test "without a deadline is the function itself" do
      fun = fn -> :same end
      assert Deadline.attach(fun) == fun
    end

    test "of a deadline that is over is over everywhere" do
      expired = Deadline.with_deadline(0, fn -> Deadline.attach(&Deadline.expired?/0) end)
      assert Task.await(Task.async(expired))
    end
  end

  test "GenServer.call takes what is left as its timeout, and the server works under it", %{service: s} do
    ExternalService.start(s)
    {:ok, server} = Agent.start_link(fn -> nil end)
    left = fn nil -> ExternalService.call(s, &Deadline.remaining/0) end

    answer = fn ->
      GenServer.call(server, {:get, Deadline.attach(left)}, Deadline.remaining())
    end

    assert Deadline.with_deadline(@long, answer) in 1..@long
    assert answer.() == :infinity
  end

  describe "a call with a deadline" do
    test "hands it to what is called inside", %{service: s} do
      ExternalService.start(s, deadline: @long)
      assert ExternalService.call(s, &Deadline.remaining/0) in 1..@long
      assert ExternalService.call(s, [deadline: 1_000], &Deadline.remaining/0) in 1..1_000
      assert ExternalService.call(s, [deadline: :infinity], &Deadline.remaining/0) == :infinity
      assert Deadline.remaining() == :infinity
    end

    test "takes the smaller of its own and what is left", %{service: s} do
      ExternalService.start(s)
      nested = fn ms -> ExternalService.call(s, [deadline: ms], &Deadline.remaining/0) end
      assert Deadline.with_deadline(1_000, fn -> nested.(@long) end) <= 1_000
      assert Deadline.with_deadline(@long, fn -> nested.(1_000) end) <= 1_000
      assert Deadline.with_deadline(1_000, fn -> ExternalService.call(s, &Deadline.remaining/0) end) <= 1_000
    end

    test "inside a call on the same clock has what that has left", %{service: s} do
      clock = start_on_clock(s)

      nested = fn ->
        VirtualClock.advance(clock, 400)
        ExternalService.call(s, [deadline: 5_000], &Deadline.remaining/0)
      end

      assert ExternalService.call(s, [deadline: 1_000], nested) == 600
    end

    test "is skipped when nothing is left: the function does not run, and nothing is taken", %{service: s} do
      ExternalService.start(s, rate_limit: [limit: 1, per: @long], circuit_breaker: [failure_rate: 0.5])
      Recorder.attach(s)
      call = fn -> ExternalService.call(s, attempting(:done)) end
      assert {:error, %DeadlineExceeded{} = error} = Deadline.with_deadline(0, call)
      assert error.context == %{service: s, deadline: 0, skipped: true, attempts: 0, reason: nil}
      assert attempts() == 0
      assert %{calls: 0, ignored: 0} = ExternalService.counts(s)
      assert Recorder.names() == [[:call, :start], [:call, :stop]]
      assert call.() == :done
    end

    test "is skipped inside a call that has used up its time", %{service: s} do
      clock = start_on_clock(s)

      nested = fn ->
        VirtualClock.advance(clock, 1_000)
        ExternalService.call(s, attempting(:done))
      end

      {:error, %DeadlineExceeded{context: context}} =
        ExternalService.call(s, [deadline: 1_000], fn -> {:ok, nested.()} end) |> elem(1)

      assert %{skipped: true, deadline: 1_000} = context
      assert attempts() == 0
    end

    test "call! raises what call returns", %{service: s} do
      ExternalService.start(s)
      call = fn -> ExternalService.call!(s, fn -> flunk("it ran") end) end
      assert_raise DeadlineExceeded, fn -> Deadline.with_deadline(0, call) end
    end

    test "ends at once, with the last reason, when a backoff would pass it", %{service: s} do
      clock = start_on_clock(s, retry: [base: 100, max_attempts: 10])
      assert {:error, error} = ExternalService.call(s, [deadline: 1_000], attempting({:retry, :down}, clock))
      assert %DeadlineExceeded{context: %{attempts: 4, reason: :down, skipped: false, deadline: 1_000}} = error
      assert {attempt_times(), VirtualClock.now(clock)} == {[0, 100, 300, 700], 700}
    end

    test "keeps the exception that was retried as the reason and the cause", %{service: s} do
      start_on_clock(s, retry: [base: 100, retry_exceptions: [KeyError]])
      raising = fn -> raise KeyError, key: :a, term: %{} end
      assert {:error, error} = ExternalService.call(s, [deadline: 50], raising)
      assert %DeadlineExceeded{context: %{reason: %KeyError{}}, cause: %{value: %KeyError{}}} = error
    end

    test "counts what the attempts take", %{service: s} do
      clock = start_on_clock(s, retry: [base: 10, backoff: :constant, max_attempts: 100])
      slow = attempting(fn -> VirtualClock.advance(clock, 90) && :retry end, clock)
      assert {:error, %DeadlineExceeded{}} = ExternalService.call(s, [deadline: 300], slow)
      assert attempt_times() == [0, 100, 200]
    end

    test "leaves retrying to :expiry and :max_attempts where those end it first", %{service: s} do
      start_on_clock(s, retry: [base: 10, max_attempts: 3])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [deadline: 1_000], fn -> :retry end)
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [deadline: 1_000, expiry: 20], fn -> :retry end)
    end

    test "refuses a wait for the rate limit that it has no time for", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 1, per: 1_000, wait: 10_000])
      assert ExternalService.call(s, fn -> :first end) == :first
      assert {:error, %RateLimited{}} = ExternalService.call(s, [deadline: 999], attempting(:done))
      assert {attempts(), VirtualClock.now(clock)} == {0, 0}
      assert ExternalService.call(s, [deadline: 1_001], attempting(:done)) == :done
      assert VirtualClock.now(clock) == 1_000
    end

    test "bounds the wait for a slot, and a waiter whose time is over never runs", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, wait: 10_000])
      fun = fn -> ExternalService.call(s, [deadline: 500], attempting(:done)) end
      assert {:error, %ServiceSaturated{}} = ExternalService.call(s, fn -> {:ok, fun.()} end) |> elem(1)
      assert {attempts(), VirtualClock.now(clock), Concurrency.queued(s)} == {0, 500, 0}
    end

    test "gives back what it took when the limits have used up its time", %{service: s} do
      sleep = fn _ms -> VirtualClock.advance(Process.get(:clock), 5_000) end
      limits = [rate_limit: [limit: 1, per: 1_000, wait: 10_000], circuit_breaker: [half_open: true]]
      Process.put(:clock, start_on_clock(s, [sleep_function: sleep] ++ limits))
      assert ExternalService.call(s, fn -> :first end) == :first

      assert {:error, %DeadlineExceeded{context: context}} =
               ExternalService.call(s, [deadline: 2_000], attempting(:done))

      assert %{skipped: true, attempts: 0} = context
      assert attempts() == 0
      assert ExternalService.counts(s).failures == 0
    end

    test "ends an attempt that hangs, which is a failure", %{service: s} do
      ExternalService.start(s, retry: [max_attempts: 1])

      assert {:error, %DeadlineExceeded{} = error} =
               ExternalService.call(s, [deadline: 20], fn -> Process.sleep(:infinity) end)

      assert %{skipped: false, attempts: 1, deadline: 20, reason: %AttemptTimeout{}} = error.context
      assert ExternalService.counts(s).failures == 1
    end

    test "that a wait has used up is a call that gave up, and melts once", %{service: s} do
      clock = VirtualClock.new()
      overslept = fn ms -> VirtualClock.advance(clock, ms + 1_000) end
      options = [clock: clock, sleep_function: overslept, deadline: 1_000, retry: [base: 100]]
      ExternalService.start(s, [circuit_breaker: [melt: :per_call]] ++ options)
      assert {:error, %DeadlineExceeded{} = error} = ExternalService.call(s, attempting({:retry, :down}))
      assert %{skipped: false, attempts: 1, reason: :down} = error.context
      assert {attempts(), ExternalService.counts(s).failures} == {1, 1}
    end

    test "with_deadline/2 alone starts no process: a call inside runs where it is", %{service: s} do
      ExternalService.start(s)
      assert Deadline.with_deadline(@long, fn -> ExternalService.call(s, &self/0) end) == self()
      assert ExternalService.call(s, [deadline: @long], &self/0) != self()
    end

    test "stays the call's when the service is started afresh meanwhile", %{service: s} do
      clock = start_on_clock(s, retry: [base: 100])
      restart = fn -> ExternalService.start(s, clock: clock, retry: [base: 100]) && :retry end
      assert {:error, error} = ExternalService.call(s, [deadline: 250], attempting(restart, clock))
      assert %DeadlineExceeded{context: %{attempts: 2}} = error
      assert attempt_times() == [0, 100]
    end
  end
end
