# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Concurrency.QueueTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers

  alias ExternalService.{Concurrency, Native, ServiceSaturated}

  @rejected [:concurrency, :rejected]

  # Far longer than any test takes.
  @long 60_000

  defmodule Server do
    use GenServer

    def start_link(test), do: GenServer.start_link(__MODULE__, test)

    @impl true
    def init(test), do: {:ok, test}

    @impl true
    def handle_call({:call, service}, _from, test), do: {:reply, ExternalService.call(service, fn -> :fine end), test}

    @impl true
    def handle_info(message, test) do
      send(test, {:stray, message})
      {:noreply, test}
    end
  end

  # What is in the mailbox of a process that is not running.
  defp messages(pid), do: pid |> Process.info(:messages) |> elem(1)

  describe "a waiter" do
    test "gets the slot when its holder is done", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      refute_received {:inside, ^waiter}
      finish(holder)
      entered(waiter)
      assert counts(s) == {1, 0}
      assert finish(waiter) == {:returned, :done}
    end

    test "gets the slot of a holder that is killed, without any call being made", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      kill(holder)
      entered(waiter)
      assert counts(s) == {1, 0}
    end

    test "is woken: until its turn comes it does nothing, and asks nobody", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      soon(fn -> Process.info(waiter, :status) == {:status, :waiting} end)
      trace(waiter)
      let_pass(30)
      assert calls(waiter) == []
      finish(holder)
      entered(waiter)
      assert {Native, :bulkhead_leave} in calls(waiter)
    end

    # Traces what the process calls of the library from now on.
    defp trace(pid) do
      modules = [Concurrency, Native]
      on_exit(fn -> for module <- modules, do: :erlang.trace_pattern({module, :_, :_}, false, [:local]) end)
      for module <- modules, do: :erlang.trace_pattern({module, :_, :_}, true, [:local])
      :erlang.trace(pid, true, [:call])
    end

    defp calls(pid) do
      delivered = :erlang.trace_delivered(pid)
      assert_receive {:trace_delivered, ^pid, ^delivered}, @long
      flush_calls(pid)
    end

    defp flush_calls(pid) do
      receive do
        {:trace, ^pid, :call, {module, function, _arguments}} -> [{module, function} | flush_calls(pid)]
      after
        0 -> []
      end
    end

    test "is served in the order of the queue: with one slot a thousand finish as they came", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      turn = :counters.new(1, [])
      parent = self()

      for n <- 1..1000 do
        spawn_link(fn ->
          ExternalService.call(s, fn ->
            :counters.add(turn, 1, 1)
            send(parent, {:turn, :counters.get(turn, 1), n})
          end)
        end)

        soon(fn -> Concurrency.queued(s) == n end)
      end

      finish(holder)
      turns = for _ <- 1..1000, do: assert_receive({:turn, turn, n}, @long) && {turn, n}
      assert turns == Enum.map(1..1000, &{&1, &1})
      soon(fn -> counts(s) == {0, 0} end)
    end

    test "is not passed by a call that comes later and does not have to wait", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      first = queue(s)
      :erlang.suspend_process(first)
      finish(holder)
      later = queue(s)
      assert counts(s) == {1, 1}
      :erlang.resume_process(first)
      entered(first)
      refute_received {:inside, ^later}
      finish(first)
      entered(later)
    end

    test "waits no longer than :wait, and is then refused", %{service: s} do
      start_limited(s, limit: 1, wait: 20)
      hold(s)
      began = System.monotonic_time(:millisecond)
      error = refused(s)
      assert System.monotonic_time(:millisecond) - began >= 20
      assert error.context == %{service: s, limit: 1, in_flight: 1, queued: 0}
      assert counts(s) == {1, 0}
    end

    test "on a virtual clock waits by moving the clock to the end of its wait", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, wait: 3_600_000])
      hold(s)
      refused(s)
      assert VirtualClock.now(clock) == 3_600_000
      assert counts(s) == {1, 0}
    end

    test "that gives up leaves the queue to the others, in their order", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      first = queue(s)
      [second, third] = for _ <- 1..2, do: queue(s)
      kill(second)
      soon(fn -> counts(s) == {1, 2} end)
      finish(holder)
      entered(first)
      finish(first)
      entered(third)
      assert counts(s) == {1, 0}
      finish(third)
      assert counts(s) == {0, 0}
    end

    for {who, place} <- [the_first: 0, one_in_the_middle: 1, the_last: 2] do
      test "that dies leaves the queue wherever it stands: #{who}", %{service: s} do
        start_limited(s, limit: 1, wait: @long)
        holder = hold(s)
        waiters = for _ <- 1..3, do: queue(s)
        dead = Enum.at(waiters, unquote(place))
        kill(dead)
        soon(fn -> counts(s) == {1, 2} end)

        last =
          Enum.reduce(waiters -- [dead], holder, fn next, before ->
            finish(before)
            entered(next)
            next
          end)

        finish(last)
        assert counts(s) == {0, 0}
      end
    end

    test "that has timed out never runs its function", %{service: s} do
      start_limited(s, limit: 1, wait: 20)
      holder = hold(s)
      waiter = calling(s)
      assert {:returned, {:error, %ServiceSaturated{}}} = ended(waiter)
      finish(holder)
      admitted(s)
      refute_received {:inside, ^waiter}
      assert counts(s) == {0, 0}
    end

    test "that dies in the instant in which its turn comes leaves the slot to the next", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      [first, second] = for _ <- 1..2, do: queue(s)
      :erlang.suspend_process(first)
      finish(holder)
      assert counts(s) == {1, 1}
      kill(first)
      entered(second)
      refute_received {:inside, ^first}
      assert counts(s) == {1, 0}
      finish(second)
      assert counts(s) == {0, 0}
    end

    test "whose wait ends in the instant in which its turn comes leaves the slot to the next", %{service: s} do
      start_limited(s, limit: 1, wait: 300)
      holder = hold(s)
      waiter = queue(s)
      :erlang.suspend_process(waiter)
      let_pass(310)
      finish(holder)
      assert counts(s) == {1, 0}
      :ok = ExternalService.reconfigure(s, concurrency: [wait: @long])
      next = queue(s)
      :erlang.resume_process(waiter)

      # OTP 29 looks for a message once more where a wait is over, so there the turn comes first.
      receive do
        {:ended, ^waiter, outcome} -> assert {:returned, {:error, %ServiceSaturated{context: %{limit: 1}}}} = outcome
        {:inside, ^waiter} -> finish(waiter)
      after
        @long -> flunk("the waiter waits still")
      end

      entered(next)
      assert messages(waiter) == []
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "may wait longer than the timers of the VM can count", %{service: s} do
      start_limited(s, limit: 1, wait: Integer.pow(2, 33))
      holder = hold(s)
      waiter = queue(s)
      finish(holder)
      entered(waiter)
      assert finish(waiter) == {:returned, :done}
    end

    test "traps exits and goes on waiting when a signal comes", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      parent = self()

      waiter =
        spawn(fn ->
          Process.flag(:trap_exit, true)
          value = ExternalService.call(s, fn -> :fine end)
          send(parent, {:got, value, Process.info(self(), :messages)})
        end)

      soon(fn -> counts(s) == {1, 1} end)
      Process.exit(waiter, :shutdown)
      finish(holder)
      assert_receive {:got, :fine, {:messages, [{:EXIT, ^parent, :shutdown}]}}, @long
    end
  end

  describe "the queue" do
    test "of 0 places refuses whoever would have to wait, at once", %{service: s} do
      start_limited(s, limit: 1, wait: @long, queue: 0)
      hold(s)
      Recorder.attach(s, [@rejected])
      refused(s)
      assert [{@rejected, %{limit: 1, wait_time: 0}, %{service: ^s}}] = Recorder.events()
      assert counts(s) == {1, 0}
    end

    test "holds as many as it has places, and refuses the next at once", %{service: s} do
      start_limited(s, limit: 1, wait: @long, queue: 2)
      holder = hold(s)
      [first, second] = for _ <- 1..2, do: queue(s)
      assert refused(s).context.queued == 2
      finish(holder)
      entered(first)
      third = queue(s)
      assert refused(s).context.queued == 2
      finish(first)
      entered(second)
      finish(second)
      entered(third)
    end

    test "gets its place back from a waiter that dies", %{service: s} do
      start_limited(s, limit: 1, wait: @long, queue: 1)
      hold(s)
      waiter = queue(s)
      refused(s)
      kill(waiter)
      soon(fn -> counts(s) == {1, 0} end)
      queue(s)
      assert counts(s) == {1, 1}
    end

    for wait <- [false, 0] do
      test "is not used with wait: #{wait}", %{service: s} do
        start_limited(s, limit: 1, wait: unquote(wait))
        hold(s)
        Recorder.attach(s, [@rejected])
        refused(s)
        assert [{@rejected, %{limit: 1, wait_time: 0}, _}] = Recorder.events()
        assert counts(s) == {1, 0}
      end
    end
  end

  describe "the caller's mailbox" do
    test "has no message more after a wait that ended with a slot, or without one", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      served = queue(s)
      finish(holder)
      entered(served)
      :ok = ExternalService.reconfigure(s, concurrency: [wait: 20])
      refused = calling(s)
      assert {:returned, {:error, %ServiceSaturated{}}} = ended(refused)
      finish(served)
      assert {messages(served), messages(refused)} == {[], []}
    end

    test "keeps its own messages, in their order", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      for n <- 1..3, do: send(waiter, n)
      finish(holder)
      entered(waiter)
      send(waiter, 4)
      finish(waiter)
      assert messages(waiter) == [1, 2, 3, 4]
    end

    test "may be full: a waiter with ten thousand messages in it is woken as well", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      for n <- 1..10_000, do: send(waiter, {:foreign, n})
      finish(holder)
      entered(waiter)
      finish(waiter)
      assert messages(waiter) == for(n <- 1..10_000, do: {:foreign, n})
    end

    test "is that of a GenServer too: it waits within a callback and sees no message of ours", %{service: s} do
      start_limited(s, limit: 1, wait: 20)
      server = start_supervised!({Server, self()})
      holder = hold(s)
      assert {:error, %ServiceSaturated{}} = GenServer.call(server, {:call, s})
      ExternalService.reconfigure(s, concurrency: [wait: @long])
      request = Task.async(fn -> GenServer.call(server, {:call, s}, @long) end)
      soon(fn -> counts(s) == {1, 1} end)
      finish(holder)
      assert Task.await(request) == :fine
      assert :sys.get_state(server) == self()
      refute_received {:stray, _}
      assert counts(s) == {0, 0}
    end
  end
end
