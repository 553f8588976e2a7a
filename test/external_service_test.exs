# SPDX-License-Identifier: Apache-2.0

defmodule ExternalServiceTest do
  use ExternalService.Case, async: true
  doctest ExternalService

  defmodule Plain do
    use ExternalService,
      circuit_breaker: [tolerate: 1, reset: 1000],
      retry: [max_attempts: 2, base: 7, retry_exceptions: [KeyError]]
  end

  defmodule Named do
    use ExternalService, name: {"a name", 1}
  end

  defmodule Anonymous do
    use ExternalService,
      sleep_function: fn _ms -> :ok end,
      retry: [retry_exceptions: fn error -> is_struct(error, KeyError) end]
  end

  defmodule Short do
    use ExternalService, retry: [max_attempts: 4, base: 0, retry_on: &(&1 == :busy)]
  end

  defmodule Captured do
    def busy?(value), do: value == :busy
    use ExternalService, retry: [max_attempts: 3, base: 0, retry_on: &__MODULE__.busy?/1]
  end

  defmodule Struct do
    use ExternalService, retry: %ExternalService.RetryOptions{max_attempts: 3, base: 0}
  end

  defmodule Bare do
    use ExternalService
  end

  defmodule Wrong do
    use ExternalService, retry: [max_attempts: 0]
  end

  # Starts a using module under the test's supervisor; its service is stopped after the test.
  defp supervise(module, overrides \\ []) do
    name = if module == Named, do: {"a name", 1}, else: module
    on_exit(fn -> ExternalService.stop(name) end)
    start_supervised!({module, overrides})
  end

  describe "start/2 and call/2" do
    test "are all that a call needs", %{service: s} do
      assert ExternalService.start(s) == :ok
      assert ExternalService.call(s, fn -> {:ok, :done} end) == {:ok, :done}
    end

    test "need no process and leave none behind", %{service: s} do
      task = Task.async(fn -> ExternalService.start(s) end)
      assert Task.await(task) == :ok
      refute Process.alive?(task.pid)
      assert ExternalService.call(s, fn -> self() end) == self()
    end
  end

  describe "available?, blown? and state" do
    test "of a closed and of an open breaker", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])

      assert {true, false, :closed} ==
               {ExternalService.available?(s), ExternalService.blown?(s), ExternalService.state(s)}

      fail(s)

      assert {false, true, :open} ==
               {ExternalService.available?(s), ExternalService.blown?(s), ExternalService.state(s)}
    end

    test "of a service not started are false, false and {:error, :not_found}", %{service: s} do
      refute ExternalService.available?(s)
      refute ExternalService.blown?(s)
      assert ExternalService.state(s) == {:error, :not_found}
      assert ExternalService.reset(s) == {:error, :not_found}
    end
  end

  describe "all_available?/1" do
    test "is true for none, and false as soon as one is not", %{service: s} do
      other = {:other, s}
      on_exit(fn -> ExternalService.stop(other) end)
      assert ExternalService.all_available?([])
      ExternalService.start(s)
      refute ExternalService.all_available?([s, other])
      ExternalService.start(other, circuit_breaker: [tolerate: 0])
      assert ExternalService.all_available?([s, other])
      fail(other)
      refute ExternalService.all_available?([s, other])
    end
  end

  describe "use ExternalService" do
    test "gives the module the calls of a service under the module's name" do
      supervise(Plain, sleep_function: recording_sleep())
      assert Plain in ExternalService.services()
      assert Plain.call(fn -> :fine end) == :fine
      assert Plain.call!(fn -> :fine end) == :fine
      assert Plain.call([max_attempts: 1], fn -> :fine end) == :fine
      assert Plain.call!([max_attempts: 1], fn -> :fine end) == :fine
      assert {Plain.available?(), Plain.blown?(), Plain.state()} == {true, false, :closed}

      assert {:error, %RetriesExhausted{context: %{service: Plain, attempts: 2}}} = Plain.call(fn -> :retry end)
      assert slept() == [7]
      assert {Plain.available?(), Plain.blown?(), Plain.state()} == {false, true, :open}
      assert_raise CircuitBreakerOpen, fn -> Plain.call!(fn -> :fine end) end

      assert Plain.reset() == :ok
      assert_raise RetriesExhausted, fn -> Plain.call!([max_attempts: 1], fn -> :retry end) end
      assert Plain.reset() == :ok
      assert_raise KeyError, fn -> Plain.call!([max_attempts: 1], fn -> raise KeyError, key: 1 end) end
    end

    test "answers for a service not started as ExternalService does" do
      assert {Bare.available?(), Bare.blown?(), Bare.state()} == {false, false, {:error, :not_found}}
      assert Bare.reset() == {:error, :not_found}
      assert {:error, %ServiceNotStarted{}} = Bare.call(fn -> 1 end)
    end

    test "needs no options" do
      supervise(Bare)
      assert Bare.call(fn -> :fine end) == :fine
    end

    test "takes a name of its own, of any term" do
      supervise(Named)
      assert {"a name", 1} in ExternalService.services()
      refute Named in ExternalService.services()
      assert Named.call(fn -> :fine end) == :fine
      assert {:error, %{context: %{service: {"a name", 1}}}} = Named.call([max_attempts: 1], fn -> :retry end)
    end

    test "takes anonymous functions, captures and a struct in its options" do
      supervise(Anonymous)
      assert_raise KeyError, fn -> Anonymous.call(attempting(fn -> raise KeyError, key: 1 end)) end
      assert attempts() == 5

      supervise(Short)
      assert {:error, %RetriesExhausted{context: %{reason: :busy}}} = Short.call(attempting(:busy))
      assert attempts() == 4

      supervise(Captured)
      assert {:error, %RetriesExhausted{context: %{reason: :busy}}} = Captured.call(attempting(:busy))
      assert attempts() == 3

      supervise(Struct)
      assert {:error, %RetriesExhausted{}} = Struct.call(attempting(:retry))
      assert attempts() == 3
    end
  end

  describe "child_spec/1" do
    test "is a worker started by start_link/1 with the overrides" do
      assert Plain.child_spec() == %{id: Plain, type: :worker, start: {Plain, :start_link, [[]]}}
      assert Plain.child_spec(retry: []).start == {Plain, :start_link, [[retry: []]]}
    end
  end

  describe "start_link/1" do
    test "merges overrides into the options, key by key and at every depth" do
      overrides = [
        sleep_function: recording_sleep(),
        circuit_breaker: [reset: 50, backend: StandIn.backend()],
        retry: [max_attempts: 3]
      ]

      supervise(Plain, overrides)
      assert_received {:installed, Plain, options}
      assert {options[:tolerate], options[:reset]} == {1, 50}
      Plain.call(fn -> :retry end)
      assert slept() == [7, 14]
    end

    test "takes an empty list over options as no change, and over a list of another kind as its replacement" do
      supervise(Plain, sleep_function: recording_sleep(), circuit_breaker: [], retry: [retry_exceptions: []])
      assert_raise KeyError, fn -> Plain.call(attempting(fn -> raise KeyError, key: 1 end)) end
      assert attempts() == 1
      Plain.call(fn -> :retry end)
      assert {slept(), Plain.state()} == {[7], :open}
    end

    test "lets a RetryOptions struct replace the retry options" do
      supervise(Plain,
        sleep_function: recording_sleep(),
        retry: %RetryOptions{max_attempts: 3},
        circuit_breaker: [tolerate: 9]
      )

      Plain.call(fn -> :retry end)
      assert slept() == [10, 20]
    end

    test "a second time is {:error, {:already_started, pid}} and leaves the service as it is" do
      pid = supervise(Plain, sleep_function: recording_sleep())
      Plain.call(fn -> :retry end)
      assert Plain.start_link() == {:error, {:already_started, pid}}
      assert Plain.start_link(circuit_breaker: [tolerate: 100]) == {:error, {:already_started, pid}}
      assert Plain.state() == :open
    end

    test "makes an agent named after the module, whose end does not stop the service" do
      supervise(Plain)
      assert is_pid(Process.whereis(Plain.Starter))
      :ok = stop_supervised(Plain)
      assert Process.whereis(Plain.Starter) == nil
      assert Plain.call(fn -> :fine end) == :fine
    end

    test "after the agent's end starts the service afresh" do
      supervise(Plain, sleep_function: recording_sleep())
      Plain.call(fn -> :retry end)
      assert Plain.state() == :open
      :ok = stop_supervised(Plain)
      assert Plain.state() == :open
      supervise(Plain)
      assert Plain.state() == :closed
    end

    test "with options that are refused is {:error, {exception, stacktrace}}" do
      Process.flag(:trap_exit, true)
      assert {:error, {%ValidationError{key: :max_attempts}, [_ | _]}} = Wrong.start_link()
      assert ExternalService.state(Wrong) == {:error, :not_found}

      assert {:error, {%ValidationError{key: [:colour]}, _}} = Bare.start_link(colour: :red)
    end
  end
end
